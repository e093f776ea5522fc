"""What came of episodes: returns, lengths and metrics; who has won, and the score; whether all episodes are alike."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from marl_sb3.core.acting.actor import Acted, ActingWatcher
from marl_sb3.core.metrics.episodes import Episode
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.types import AgentID, Array, PolicyID

Seat: TypeAlias = tuple[AgentID, ...]  # the agents that policies play against an opponent; empty: there is none


@dataclass(frozen=True)
class Played:
    """What came of complete episodes."""

    metrics: Result  # nested, with the names of `env_runners/`; None if no episode has a value
    episodes: tuple[Episode, ...]  # the counted episodes, in the order in which they ended
    agents: Sequence[AgentID]  # of the env
    # whether several episodes are one and the same in all that agents see, do and are paid; None: nobody has asked
    alike: bool | None = None

    def returns(self) -> list[float]:
        """Return the sum of all agents' returns in each episode."""
        return [sum(episode.agent_returns.values()) for episode in self.episodes]

    def agent_returns(self, agent: AgentID) -> list[float]:
        """Return the agent's return in each episode in which it took part."""
        return [episode.agent_returns[agent] for episode in self.episodes if agent in episode.agent_returns]

    def lengths(self) -> list[int]:
        """Return the env steps of each episode."""
        return [episode.length for episode in self.episodes]

    def custom(self, name: str) -> list[float]:
        """Return the custom metric of each episode that has it."""
        return [episode.custom[name] for episode in self.episodes if name in episode.custom]

    def by_seed(self, agents: Sequence[AgentID]) -> Array:
        """Return the returns of some agents in each episode, (n, agents), in the order of seeds; NaN: it has none."""
        in_order = sorted(self.episodes, key=lambda episode: episode.env_index)  # those of an env are in order
        paid = [[episode.agent_returns.get(agent, np.nan) for agent in agents] for episode in in_order]
        return np.array(paid, np.float64).reshape(len(paid), len(agents))


def outcomes(played: Mapping[Seat, Played]) -> dict[Seat, dict[str, list[float]]]:
    """Return 0 or 1 for each episode of each seat: whether it was `won`, `drawn` or `lost`; see `points`.

    It is asked only where returns `oppose` each other in all of them; elsewhere nothing is returned.
    """
    sides = {
        seat: [mean_returns(each.by_seed([a for a in each.agents if (a in seat) is own])) for own in (True, False)]
        for seat, each in played.items()
    }
    sums = [total for each in played.values() for total in each.returns()]
    if not oppose(np.concatenate([ours for ours, _ in sides.values()]), sums):
        return {}
    won = {seat: points(*both) for seat, both in sides.items()}
    return {
        seat: {outcome: [float(each == worth) for each in own[~np.isnan(own)]] for outcome, worth in OUTCOMES.items()}
        for seat, own in won.items()
    }


def metrics_of(played: Mapping[Seat, Played]) -> Result:
    """Return the metrics of each seat by its name, with the shares of its outcomes; see `evaluate_policies`."""
    found = outcomes(played)
    return {
        seat_name(seat): {**each.metrics, **{name: mean_of(shares) for name, shares in found.get(seat, {}).items()}}
        for seat, each in played.items()
    }


def seat_name(seat: Sequence[AgentID]) -> str:
    """Name a seat by its agents."""
    return ",".join(seat)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of those that there are; None if there is none."""
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None


# --- Who has won -----------------------------------------------------------------------------------------------------

OUTCOMES: Mapping[str, float] = {"won": 1.0, "drawn": 0.5, "lost": 0.0}  # of an episode, and its points
_ROUNDING = 1e-4  # rewards are float32


def closeness(*returns: npt.ArrayLike) -> float:
    """Return the largest difference by which returns like these count as equal."""
    return _ROUNDING * max(1.0, *(float(np.fmax.reduce(np.abs(each), axis=None, initial=0.0)) for each in returns))


def oppose(own: npt.ArrayLike, sums: npt.ArrayLike) -> bool:
    """Return whether one wins what others lose: the sum is the same in all episodes, and either 0, or returns differ.

    Args:
        own: returns of some, in several episodes; NaN: none.
        sums: of the returns of all agents.
    """
    known, totals, close = np.asarray(own), np.asarray(sums), closeness(own, sums)
    known = known[~np.isnan(known)]
    if not known.size or np.ptp(totals) > close:
        return False
    return bool(abs(totals[0]) <= close or np.ptp(known) > close)


def mean_returns(returns: Array) -> Array:
    """Return the mean return of a side in each episode, (n,): of (n, agents), those that have one; NaN: none has."""
    known = ~np.isnan(returns)
    sums = np.where(known, returns, 0.0).sum(axis=1)
    return np.where(known.any(axis=1), sums / np.maximum(1, known.sum(axis=1)), np.nan)


def points(ours: Array, theirs: Array) -> Array:
    """Return the points of a side in each episode by its return and that of the others: those of `OUTCOMES`.

    It is asked only where returns oppose each other. NaN: a side has no return.
    """
    margins = ours - theirs
    won = np.where(np.abs(margins) <= closeness(ours, theirs), OUTCOMES["drawn"], margins > 0)
    return np.where(np.isnan(margins), np.nan, won)


class Scoreboard:
    """What came of the episodes of a game.

    The side with the highest mean return wins an episode, but only where returns `oppose` each other in all episodes so
    far, or the training has found that they do.

    Args:
        takes_turns: whether one agent acts in each step. Then a draw pays nothing, and whoever moves illegally is the
            only one to lose.
        opposed: whether the training has found that returns oppose each other, see `core.metrics.Opposition`.
    """

    def __init__(self, *, takes_turns: bool, opposed: bool = False) -> None:
        self._takes_turns, self._opposed = takes_turns, opposed
        self._sides: dict[str, float] = {}  # name -> the mean return of its agents, in the latest episode
        self._is_foul = False  # whether a move that is not allowed has ended it
        # Of the episodes that no such move has ended: the least and the highest return of the first side, and sum.
        self._own, self._sums = list[float](), list[float]()
        self._differ = takes_turns  # whether a side has got more than another, or nothing may be a draw
        # (names of the sides, their best ones) -> episodes; those that were ended by such a move by themselves
        self._wins, self._fouls = (Counter[tuple[frozenset[str], tuple[str, ...]]]() for _ in range(2))
        self._order: dict[str, None] = {}  # sides as they were first seen

    def add(self, returns: Mapping[AgentID, float], side_of: Mapping[AgentID, str]) -> None:
        """Note an episode: the returns of the agents, and the name of the side that each of them is on."""
        of_side: dict[str, list[float]] = {}
        for agent, own in returns.items():
            of_side.setdefault(side_of[agent], []).append(own)
        self._sides = {name: math.fsum(own) / len(own) for name, own in of_side.items()}
        self._order |= dict.fromkeys(self._sides)
        *others, worst = sorted(returns.values(), reverse=True)
        self._is_foul = self._takes_turns and bool(others) and others[0] == 0 > worst and others[-1] > worst
        (self._fouls if self._is_foul else self._wins)[frozenset(self._sides), self._best()] += 1
        if not self._is_foul:
            own, total = next(iter(self._sides.values())), math.fsum(returns.values())
            self._own = [min(own, *self._own), max(own, *self._own)] if self._own else [own, own]
            self._sums = [min(total, *self._sums), max(total, *self._sums)] if self._sums else [total, total]
            self._differ = self._differ or bool(self._best())

    def _best(self) -> tuple[str, ...]:
        """Return the sides with the highest return in the latest episode; none if all are equal."""
        highest, close = max(self._sides.values()), closeness([*self._sides.values()])
        best = [name for name, own in self._sides.items() if highest - own <= close]
        return tuple(best) if len(best) < len(self._sides) else ()

    def _oppose(self) -> bool:
        return self._opposed or (self._differ and oppose(self._own, self._sums))

    def result(self) -> str:
        """Say who has won the latest episode; empty if the returns do not tell."""
        if self._is_foul:
            return f"{min(self._sides, key=lambda side: self._sides[side])} lost"
        if len(self._sides) < 2 or not self._oppose():
            return ""
        return f"{' and '.join(best)} won" if (best := self._best()) else "A draw"

    def tally(self) -> str:
        """Say how often the sides of the latest episode have won: `a 3 : 1 b, 1 draw`.

        It is empty where they are not two, or the returns do not tell.
        """
        if len(self._sides) != 2:
            return ""
        sides, counted = frozenset(self._sides), self._fouls + (self._wins if self._oppose() else Counter())
        one, other = (name for name in self._order if name in sides)
        wins, others, draws = (counted[sides, best] for best in ((one,), (other,), ()))
        ends = f", {draws} draw{'' if draws == 1 else 's'}" if draws else ""
        return f"{one} {wins} : {others} {other}{ends}" if wins + others + draws else ""


# --- Whether episodes are alike --------------------------------------------------------------------------------------


class EpisodeDigests(ActingWatcher):
    """Finds out whether episodes are one and the same: what agents see, do and are paid."""

    def __init__(self) -> None:
        self.finished = set[int]()  # the digests of the episodes that have ended

    @override
    def begin_episodes(self, step: VecStep) -> None:
        self._running = [0] * len(step.to_act)

    @override
    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        self._add(*step.observations, *actions)

    def _add(self, *groups: Any) -> None:
        """Add arrays, or dictionaries of them, whose first dimension is the envs, to the digests of their episodes."""
        if len(self.finished) > 1:  # two that differ are enough
            return
        for group in groups:
            for array in group.values() if isinstance(group, dict) else (group,):
                for env_index, digest in enumerate(self._running):
                    self._running[env_index] = zlib.crc32(array[env_index].tobytes(), digest)

    @override
    def after_step(self, step: VecStep) -> None:
        self._add(step.rewards, step.terminated, step.truncated)
        for (env_index, _), seen in sorted(step.final_observations.items(), key=itemgetter(0)):
            for array in seen.values() if isinstance(seen, dict) else (seen,):
                self._running[env_index] = zlib.crc32(np.asarray(array).tobytes(), self._running[env_index])
        for env_index in np.flatnonzero(step.episode_done).tolist():
            self.finished.add(self._running[env_index])
            self._running[env_index] = 0
