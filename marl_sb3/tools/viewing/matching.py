"""Matches: all players play each other on all sides, and what comes of it in numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.config.values import Count, PositiveInt, require
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.mapping import by_policy
from marl_sb3.core.metrics.opposition import Opposition
from marl_sb3.core.metrics.statistics import SampleStats, sample_stats, share_stats
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.envs.finding import named_factory
from marl_sb3.errors import ConfigError, shown
from marl_sb3.evaluation.opponents import Code, bundle_of, opponent_name
from marl_sb3.evaluation.played import OUTCOMES, mean_returns, oppose, points
from marl_sb3.evaluation.playing import EvaluationPlan, play
from marl_sb3.evaluation.search import searching
from marl_sb3.extensions.display.tables import progress_bars
from marl_sb3.results.rating import Rating, ratings
from marl_sb3.runs.building import make_envs
from marl_sb3.runs.folder import run_around, verified_path
from marl_sb3.tools.viewing.players import Player, Sides, game_of, labels, players_of, runs_of, seated, sides_of
from marl_sb3.types import AgentID, Array

_UNFAIR = 0.95  # share of the episodes that were not drawn, above which a side wins by itself
_BEST = 10  # players among whom cycles are looked for
_NOBODY = PolicyBundle({}, {}, {}, {})
_Episodes = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # a number of them; floats hold these exactly


@dataclass(frozen=True)
class Points:
    """What a player has won against another: 1 point for each win, 0.5 for each draw; see `Match.unfair`."""

    won: _Episodes
    drawn: _Episodes
    lost: _Episodes
    share: float  # of the points
    ci95: tuple[float, float]  # Wilson's interval, which is wider than it needs to be where there are draws


@dataclass(frozen=True)
class Entrant:
    """A player, and how it did."""

    name: str
    source: str  # the path of its run or its files, or MODULE:CLASS
    checkpoint: str | None  # which its policies were loaded from, `ckpt-000012`, or member of the league, `main@12`
    sides: list[str]  # those that it could take
    rating: Rating | None  # on Elo's scale; None: returns do not oppose each other, or it has played no game
    own: dict[str, SampleStats]  # by side: mean return of its agents, where it took all sides
    against_others: dict[str, SampleStats]  # the same where others took the other sides: means over these, by seed


@dataclass(frozen=True)
class Cycle:
    """Three players, each of whom has won against the next one, and the last against the first."""

    players: list[str]
    certain: bool  # whether each share of points is above one half at 95 %


@dataclass(frozen=True)
class Match:
    """The result of a match; rows and columns of its tables are the players, in their order."""

    env: str  # id of the env
    sides: dict[str, list[AgentID]]  # agents of each side, by its name
    episodes: int  # of each two players in each order of the sides
    seed: int  # of the episodes: all players play the same ones
    players: list[Entrant]
    opposed: str | None  # how the agents' returns oppose each other; None if they do not, and there are no winners
    doubt: str | None  # why it is not certain that they do not
    # the side that won more than 95 % of the episodes that were not drawn, with any player: a player wins then by the
    # higher sum of mean returns over both sides, in the two episodes of one seed. None: it wins single episodes
    unfair: str | None
    points: list[list[Points | None]]  # of the row against the column
    returns: dict[str, list[list[SampleStats | None]]]  # by side: of the row on it, and the column on all others
    cycles: list[Cycle]  # among the best ten
    notes: list[str]
    deterministic: bool | None = None  # the most likely actions, or sampled ones; None: as in the settings of each run
    search: int = 0  # number of positions that policies search before each action

    def to_plain(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        return dict(msgspec.to_builtins(self))

    @classmethod
    def from_json(cls, text: bytes) -> Match:
        """Read what `to_plain` has returned from a file, which is untrusted.

        Raises:
            ConfigError: it is something else.
        """
        try:
            found = msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ConfigError(f"no result of a match: {error}; accepted: what match --json prints") from error
        n = len(found.players)
        tables: list[Sequence[Sequence[object]]] = [found.points, *found.returns.values()]
        if any(len(rows) != n or any(len(row) != n for row in rows) for rows in tables):
            raise ConfigError(f"no result of a match: a table has not {n} rows and columns, one for each player")
        return found

    def write(self, path: str | Path) -> Path:
        """Write a page, FILE.html, or the result itself, FILE.json."""
        from marl_sb3.tools.viewing.match_page import write

        return write(self, Path(path))

    def _repr_html_(self) -> str:
        """Return the match as notebooks show it: the players, and what was found."""
        from marl_sb3.tools.viewing.match_page import players

        return "".join(players(self))

    def __repr__(self) -> str:
        ranked = ", ".join(
            each.name if each.rating is None else f"{each.name} {each.rating.rating:+.0f}" for each in self.players
        )
        return f"<Match in {self.env}: {ranked}>"


def match(
    players: Mapping[str, Any] | Sequence[Any],
    *,
    opponents: Sequence[Code] = (),
    checkpoints: str | None = None,
    env: str | EnvFactory | None = None,
    sides: Sequence[Sequence[AgentID]] = (),
    episodes: int = 100,
    deterministic: bool | None = None,
    seed: int = 0,
    n_envs: int | None = None,
    search: int = 0,
    verify: str | Path | None = None,
) -> Match:
    """Let players play each other, on all sides, in the same episodes.

    Args:
        players: run folders, checkpoints, members of a league, what `MultiAgentAlgorithm.save` wrote, a `Run`, policies
            from `load_policies`; by name, or without names.
        opponents: players of code: `random`, `MODULE:CLASS`, a class, or an object; see `evaluate_policies`.
        checkpoints: which of each run plays: `best`, `latest`, numbers of iterations (`4,8`), or `all`: each is a
            player, as are the members of its league. None: as in `load_policies`.
        env: the env, or its factory; needed if no player is a run, or if it is code of your own. None: the runs' env.
        sides: the agents of each side; those that are left are one more. None: those that one policy plays, where runs
            have several; else each agent alone. A player takes one side, another player all others.
        episodes: of each two players in each order of the sides.
        deterministic: the most likely actions (True), or sampled ones (False). None: the setting of each run.
        seed: of the episodes and of sampled actions.
        n_envs: envs that step together; None: as in the first run.
        search: how many positions policies look at before each action, see `evaluation.searching`; 0: none.
        verify: file of a public key: all that paths name must be signed by it, see `sign_folder`, or be in a run that
            is; verified copies are what plays. None: it need not be signed.

    Raises:
        ConfigError: there are fewer than two players, or they do not play one game; the message names them.
        CheckpointError: there is no such checkpoint, it is damaged, or its signature is missing or wrong.
        HookError: an opponent of code failed.
    """
    episodes = require("episodes", episodes, PositiveInt)
    checkpoints, search = require("checkpoints", checkpoints, str | None), require("search", search, Count)
    deterministic = require("deterministic", deterministic, bool | None)
    env_id, factory = named_factory(env)
    opponents = [opponents] if isinstance(opponents, str) else opponents
    code = {opponent_name(each): each for each in opponents}
    if len(code) < len(opponents):
        raise ConfigError("an opponent is given twice; accepted: different ones", key="--opponent")
    named = _named([players] if isinstance(players, (str, Path)) else players, code)
    if not named and not code:
        words = "no player is given, and a match needs two; accepted: runs, --opponent random or MODULE:CLASS"
        raise ConfigError(words, key="run")
    paths = {label: each for label, each in named.items() if isinstance(each, Path)}
    with ExitStack() as cleanup:
        sources: dict[str, str] = {}  # of copies
        if verify is not None:
            copies = {label: cleanup.enter_context(verified_path(path, verify)) for label, path in paths.items()}
            pairs = [(copies[label], path) for label, path in paths.items()]
            sources = {str(run_around(copy) or copy): str(run_around(path) or path) for copy, path in pairs}
            named = {**named, **copies}
        folders = [getattr(each, "folder", each) for each in named.values()]
        runs = runs_of([folder for folder in folders if isinstance(folder, Path)], env_id)
        config, notes = game_of(runs, env_id)
        plan = EvaluationPlan.of_run(config, episodes, deterministic, seed, n_envs)
        envs = cleanup.enter_context(closing(make_envs(config, factory, plan.n_envs, seed)))
        found = players_of({**named, **code}, runs, checkpoints, envs)
        found = [replace(player, source=sources.get(player.source, player.source)) for player in found]
        bundles = [bundle for player in found if (bundle := bundle_of(player.plays)) is not None]
        the_sides = sides_of(bundles, envs.agents, sides)
        placed = [seated(player, envs, the_sides) for player in found]
        unable: dict[tuple[str, str], list[str]] = {}  # side and why -> the players that cannot take it
        for player, faults in placed:
            for fault in faults.items():
                unable.setdefault(fault, []).append(player.name)
        notes += [f"{', '.join(those)} cannot play {side}: {why}" for (side, why), those in unable.items()]
        ahead = [
            player if (bundle := bundle_of(player.plays)) is None else replace(player, plays=searching(bundle, search))
            for player, _ in placed
        ]
        table = _Games(envs.agents, the_sides, ahead)
        bars = cleanup.enter_context(progress_bars())
        playing = bars.add_task("episodes", total=episodes * len(table.seatings))
        table.play(envs, episodes, deterministic, seed, lambda _: bars.advance(playing))
    found_out = table.result(config.env, episodes, seed, notes)
    return replace(found_out, deterministic=deterministic, search=search)


def _named(players: Mapping[str, Any] | Sequence[Any], taken: Collection[str]) -> dict[str, Any]:
    """Return the players by names, none of which is taken; those that are paths are `Path`s."""
    if isinstance(players, Mapping):
        names, given = [*players], [*players.values()]
    else:
        given = [*players]
        folders = [Path(each) if isinstance(each, str) else getattr(each, "folder", each) for each in given]
        of_folders = iter(labels([folder for folder in folders if isinstance(folder, Path)], taken))
        names = [
            next(of_folders) if isinstance(folder, Path) else f"player {number}"
            for number, folder in enumerate(folders, 1)
        ]
    twice = next((name for name in names if names.count(name) > 1 or name in taken), None)
    if twice is not None:
        words = f"two players are called {shown(twice)}; accepted: different names: other paths, or by name in Python"
        raise ConfigError(words, key="run")
    return {name: Path(each) if isinstance(each, str) else each for name, each in zip(names, given, strict=True)}


# --- Playing ---------------------------------------------------------------------------------------------------------


class _Games:
    """The games of a match: who sits where, and the returns.

    Args:
        agents: of the env.
        sides: of the game.
        players: with the sides that each can take.
    """

    def __init__(self, agents: Sequence[AgentID], sides: Sides, players: Sequence[Player]) -> None:
        self._agents, self._sides, self._players = list(agents), sides, players
        numbers, seatings = range(len(players)), dict[tuple[int, ...], None]()
        for one, other in product(numbers, numbers):
            for side in sides:
                seating = tuple(one if name == side else other for name in sides)
                if all(name in players[who].sides for name, who in zip(sides, seating, strict=True)):
                    seatings[seating] = None
        if not seatings:
            able = ", ".join(f"{player.name} plays {', '.join(player.sides)}" for player in players)
            words = f"no two players take all sides ({', '.join(sides)}): {able}"
            raise ConfigError(f"{words}; accepted: also a player of the others, such as --opponent random", key="run")
        self.seatings = list(seatings)  # the player on each side; with two sides, each is one of two orders
        # By seating: each agent's return in each episode, (n, A), in the order of their seeds; NaN where it has none.
        self._returns: dict[tuple[int, ...], Array] = {}
        self._same: list[tuple[int, ...]] = []  # in which all episodes were one and the same

    def play(
        self,
        env: MultiAgentVecEnv,
        episodes: int,
        deterministic: bool | None,
        seed: int,
        on_episode: Callable[[Any], None],
    ) -> None:
        """Play all games, each with the same seeds."""
        for seating in self.seatings:
            who = self._who_plays(seating, deterministic)
            played = play(env=env, n_episodes=episodes, seed=seed, on_episode=on_episode, compares=True, **who)
            self._returns[seating] = played.by_seed(self._agents)  # each env has played as many in all games
            if played.alike:
                self._same.append(seating)

    def _who_plays(self, seating: tuple[int, ...], deterministic: bool | None) -> dict[str, Any]:
        """Return the arguments of `play` for a game; at most two players sit in it."""
        bundles = {who: bundle for who in seating if (bundle := bundle_of(self._players[who].plays)) is not None}
        acting = self._seats(seating, next(iter(bundles), None))
        code = {
            agent: self._players[who].plays
            for who in seating
            if who not in bundles
            for agent in self._seats(seating, who)
        }
        first, *others = bundles.values() or [_NOBODY]
        how = by_policy(first.evaluation_deterministic, first.policies) if deterministic is None else deterministic
        return {"algo": first, "acting": acting, "against": others[0] if others else code, "deterministic": how}

    def _seats(self, seating: tuple[int, ...], player: int | None) -> list[AgentID]:
        """The agents of a player in a game."""
        held = [side for side, who in zip(self._sides.values(), seating, strict=True) if who == player]
        return [agent for side in held for agent in side]

    def _mean_return(self, seating: tuple[int, ...], agents: Sequence[AgentID]) -> Array:
        """The mean return of some agents in each episode, (n,); see `mean_returns`."""
        return mean_returns(self._returns[seating][:, [self._agents.index(agent) for agent in agents]])

    # --- What came of it ---------------------------------------------------------------------------------------------

    def result(self, env: str, episodes: int, seed: int, notes: Sequence[str]) -> Match:
        """Return the numbers."""
        (opposed, doubt), numbers = self._opposed(), range(len(self._players))
        unfair = None if opposed is None else self._unfair()
        pairs = [] if opposed is None else list(permutations(numbers, 2))
        won = {pair: self._won(*pair, paired=unfair is not None) for pair in pairs}
        points = [[_points(won.get((one, two))) for two in numbers] for one in numbers]
        seeds = max(map(len, self._returns.values()), default=0)
        by_seed = np.zeros((seeds, len(self._players), len(self._players)))
        for pair, values in won.items():
            by_seed[:, *pair] = np.nansum(values, axis=0)
        rated = ratings(by_seed)
        returns = {
            side: [[self._stats(self._returns_of(side, one, two)) for two in numbers] for one in numbers]
            for side in self._sides
        }
        entrants = [
            Entrant(
                player.name,
                player.source,
                player.checkpoint,
                list(player.sides),
                rated[number],
                {side: stats for side in self._sides if (stats := returns[side][number][number]) is not None},
                {side: stats for side in self._sides if (stats := self._against_others(side, number)) is not None},
            )
            for number, player in enumerate(self._players)
        ]
        return Match(
            env,
            {name: list(agents) for name, agents in self._sides.items()},
            episodes,
            seed,
            entrants,
            opposed,
            doubt,
            unfair,
            points,
            returns,
            _cycles(entrants, points),
            [*notes, *(self._decided() if opposed is not None else ()), *self._repeated(episodes)],
        )

    def _opposed(self) -> tuple[str | None, str | None]:
        """Return two sentences, or None for each: how the returns oppose each other; why it is unclear if they do."""
        everything = np.concatenate(list(self._returns.values()))
        sums = np.nansum(everything, axis=1)  # of those that took part
        if oppose(everything, sums):
            total = round(float(sums[0]), 3) + 0.0
            return f"the agents' returns oppose each other: their sum is always about {total:.4g}", None
        found = Opposition(self._agents, {agent: name for name, side in self._sides.items() for agent in side})
        for returns in self._returns.values():
            for row in returns[: len(returns) // 2 * 2].tolist():  # pairs of episodes are of one game
                paid = zip(self._agents, row, strict=True)
                found.add({agent: None if math.isnan(value) else value for agent, value in paid})
        return found.words(), found.doubt()

    def _unfair(self) -> str | None:
        """Return the one of two sides that has won nearly all episodes that were not drawn; None if there is none.

        Games that two players have played in one order alone do not count: the players may have decided them.
        """
        both = [seating for seating in self._returns if seating[::-1] in self._returns]
        if len(self._sides) != 2 or not both:
            return None
        first, second = self._sides.values()
        margins = [self._mean_return(seating, first) - self._mean_return(seating, second) for seating in both]
        won, lost = (int((sign * np.concatenate(margins) > 0).sum()) for sign in (1, -1))
        return None if max(won, lost) <= _UNFAIR * (won + lost) else list(self._sides)[0 if won > lost else 1]

    def _decided(self) -> Iterator[str]:
        """Say so where each of more than two sides nearly always wins, or loses, against all others."""
        most = total = 0
        for number, side in enumerate(self._sides.values() if len(self._sides) > 2 else ()):
            others = [agent for agent in self._agents if agent not in side]
            counts = np.zeros(2, np.int64)
            for seating in self.seatings:
                alone, other = seating[number], seating[number - 1]
                swapped = tuple(other if who == alone else alone for who in seating)
                if seating.count(alone) == 1 and swapped in self._returns:
                    margins = self._mean_return(seating, side) - self._mean_return(seating, others)
                    counts += [(margins > 0).sum(), (margins < 0).sum()]
            most, total = most + int(counts.max()), total + int(counts.sum())
        if most > _UNFAIR * total:
            words = "the side that a single player plays has won or lost nearly every episode that was not drawn"
            yield f"{words}, so points do not compare players; --agents (sides=) names the agents of a team"

    def _won(self, one: int, two: int, *, paired: bool) -> Array:
        """Return what a player has won against another, (orders of the sides, episodes): 1, or 0.5 for a draw.

        NaN: nobody has won, or lost. With `paired`, both orders count together.
        """
        seatings = [seating for seating in self.seatings if {*seating} == {one, two}]
        if len(seatings) < 1 + paired:
            return np.full((1, 1), np.nan)
        ours, theirs = (
            np.array([self._mean_return(seating, self._seats(seating, who)) for seating in seatings])
            for who in (one, two)
        )
        return points(ours.sum(axis=0), theirs.sum(axis=0))[None] if paired else points(ours, theirs)

    def _returns_of(self, side: str, one: int, two: int) -> Array:
        """Return the mean return of a side in each episode, with one player on it, and another on all others."""
        seating = tuple(one if name == side else two for name in self._sides)
        return self._mean_return(seating, self._sides[side]) if seating in self._returns else np.empty(0)

    def _against_others(self, side: str, player: int) -> SampleStats | None:
        """The mean over all other players in each episode: episodes of the same seed are alike."""
        found = [self._returns_of(side, player, other) for other in range(len(self._players)) if other != player]
        found = [each for each in found if len(each)]
        return self._stats(np.mean(found, axis=0)) if found else None

    @staticmethod
    def _stats(values: Array) -> SampleStats | None:
        known = values[~np.isnan(values)].tolist()
        return sample_stats(known) if known else None

    def _repeated(self, episodes: int) -> Iterator[str]:
        if self._same:
            n, of = len(self._same), len(self.seatings)
            which = "all games" if n == of else f"{n} of {of} games"
            words = f"in {which}, the {episodes} episodes are one and the same, although intervals count them all"
            yield f"{words}: nothing in them is drawn at random; --stochastic (deterministic=False) samples actions"


def _points(won: Array | None) -> Points | None:
    """Count what `_Games._won` has returned; None if there is nothing."""
    values = [] if won is None else won[~np.isnan(won)].tolist()
    stats = share_stats(values)
    if stats.mean is None or stats.ci95 is None:
        return None
    n_won, drawn, lost = map(values.count, OUTCOMES.values())
    return Points(n_won, drawn, lost, stats.mean, stats.ci95)


def _cycles(players: Sequence[Entrant], points: Sequence[Sequence[Points | None]]) -> list[Cycle]:
    """Find the cycles of three among the best players, those that are certain first."""
    strength = [each.rating.rating if each.rating is not None else -np.inf for each in players]
    best = sorted(sorted(range(len(players)), key=lambda number: -strength[number])[:_BEST])
    found = []
    for one, two, three in combinations(best, 3):
        for ring in ((one, two, three), (one, three, two)):
            won = [points[a][b] for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)]
            if all(each is not None and each.share > 0.5 for each in won):
                certain = all(each is not None and each.ci95[0] > 0.5 for each in won)
                found.append(Cycle([players[number].name for number in ring], certain))
    return sorted(found, key=lambda cycle: not cycle.certain)
