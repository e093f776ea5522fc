"""The pool of a league: its members, who plays whom in an episode, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from marl_sb3.core.metrics.names import Result
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.types import Array, PolicyID

Weights = Mapping[str, Array]  # of one policy, by name, as a checkpoint holds them

_MOST_GAMES = 100.001  # 1 / (1 - _MEMORY), and what rounding adds
_MEMORY = 0.99  # share of what was counted that stays with each further game: about 100 games count
_WON, _DRAWN = 1, 0  # -1: lost


# Weights of opponents given the probability of winning against each, oldest first. `hard` and `even` are the two of
# prioritised fictitious self-play: Vinyals et al., Nature 575, 2019, methods.
SAMPLING: Mapping[str, Callable[[Array], Array]] = {
    "uniform": np.ones_like,
    "recent": lambda won: 0.5 ** np.arange(len(won) - 1, -1, -1.0),
    "hard": lambda won: (1.0 - won) ** 2,
    "even": lambda won: won * (1.0 - won),
}


class Score(NamedTuple):
    """Results of games against one opponent; those of long ago count less."""

    games: float = 0.0  # how many count
    won: float = 0.0
    drawn: float = 0.0
    paid: float = 0.0  # sum of the mean returns of the own side's agents
    played: int = 0  # how many there were

    def after(self, outcome: int, paid: float) -> Score:
        """Return the results with those of one more game."""
        games, won, drawn, total = (_MEMORY * number for number in self[:4])
        return Score(games + 1, won + (outcome == _WON), drawn + (outcome == _DRAWN), total + paid, self.played + 1)

    @property
    def points(self) -> float:
        """A win counts 1, a draw 0.5."""
        return self.won + self.drawn / 2

    @property
    def rate(self) -> float:
        """Estimate of the points of a game; half a point before the first one."""
        return (self.points + 0.5) / (self.games + 1)

    def metrics(self) -> Result:
        """Return the results as metrics: shares of games, the mean return of the own side, and all games so far."""
        shares = {"won": self.won, "drawn": self.drawn, "lost": self.games - self.won - self.drawn}
        means = {**shares, "return_mean": self.paid}
        return {**{name: number / self.games for name, number in means.items()}, "num_games": self.played}


Scores = dict[str, Score]  # opponent -> results


@dataclass(frozen=True)
class Member:
    """A member of the pool."""

    name: str  # `main@120` for a snapshot of `main` after iteration 120; of others, what the settings call them
    policy_id: PolicyID | None = None  # of whom it is a snapshot; None: it comes from a file or from code
    iteration: int = 0  # after which the snapshot was taken
    weights: Weights | None = field(default=None, repr=False)  # of a snapshot; None: they have yet to come
    statistics: State = field(default_factory=dict, repr=False)  # by which a snapshot normalises observations
    scores: Scores = field(default_factory=dict, repr=False)  # of the policy when the snapshot was taken

    def to_plain(self, *, complete: bool) -> State:
        """Return it as plain data; without the weights if not `complete`."""
        more = {"weights": dict(self.weights or {}), "statistics": self.statistics} if complete else {}
        return {"policy": self.policy_id, "iteration": self.iteration, "scores": plain_scores(self.scores), **more}


def read_member(name: str, state: StateReader, before: Member | None) -> Member:
    """Read what `to_plain` returned; weights that it left out are taken from the member as it was before."""
    weights, statistics = (None, {}) if before is None else (before.weights, before.statistics)
    if "weights" in state:
        weights = read_weights_of(state.fields("weights"))
        statistics = dict(state.fields("statistics").values())
    scores, policy = read_scores(state.fields("scores")), state.string("policy")
    return Member(name, policy, state.integer("iteration"), weights, statistics, scores)


def read_weights_of(state: StateReader) -> Weights:
    """Read weights by their names."""
    weights = dict(state.values())
    for name, array in weights.items():
        if not isinstance(array, np.ndarray):
            raise state.error(name, array, "an array")
    return weights


def plain_scores(scores: Mapping[str, Score]) -> State:
    """Return results as plain data."""
    return {name: list(score) for name, score in scores.items()}


def read_scores(state: StateReader) -> Scores:
    """Read what `plain_scores` returned."""
    read: Scores = {}
    for name in state.names():
        read[name] = score = Score(*state.like(name, Score()))
        not_lost, is_negative = score.won + score.drawn, min(score.won, score.drawn) < 0
        if not 1 <= score.games <= _MOST_GAMES or is_negative or not_lost > score.games + 1e-6:
            raise state.error(name, score, f"1 to {_MOST_GAMES:g} games, and no more of them won or drawn")
    return read


def drawn(rng: np.random.Generator, names: Sequence[str], scores: Mapping[str, Score], sampling: str) -> str:
    """Draw one of several opponents.

    Args:
        names: of the opponents, oldest first.
        scores: against those that there were games with.
        sampling: one of `SAMPLING`.
    """
    won = np.array([scores.get(name, Score()).rate for name in names])
    weights = SAMPLING[sampling](won) + 1e-9  # all may be beaten for certain
    return names[int(rng.choice(len(names), p=weights / weights.sum()))]


def points_matrix(names: Sequence[str], scores_of: Mapping[str, Mapping[str, Score]]) -> Array:
    """Return (n, n): the points that each player has won against each other one.

    Args:
        scores_of: player -> its results; those that both report are counted once, those of the later one.
    """
    points = np.zeros((len(names), len(names)))
    place = {name: number for number, name in enumerate(names)}
    for name in names:
        for other, score in scores_of.get(name, {}).items():
            if other in place and other != name:
                points[place[name], place[other]] = score.points
                points[place[other], place[name]] = score.games - score.points
    return points


def to_evict(snapshots: Sequence[Member], size: int, ratings: Mapping[str, float | None]) -> list[str]:
    """Return the snapshots that leave a full pool: of the older half but the first, those with the lowest ratings.

    Args:
        snapshots: oldest first.
        size: how many the pool holds.
    """
    left, leaving = list(snapshots), list[str]()
    known = {name: -math.inf if rating is None else rating for name, rating in ratings.items()}
    while len(left) > size:
        older = left[1 : max(2, len(left) // 2)] if size > 1 else left[:1]
        worst = min(older, key=lambda member: known.get(member.name, -math.inf))
        left.remove(worst)
        leaving.append(worst.name)
    return leaving
