"""`League`: present policies play each other, a pool of earlier ones, and opponents from files and from code."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self, get_type_hints

import numpy as np
from typing_extensions import override

from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.config.values import Fraction, PositiveInt, require
from marl_sb3.core.metrics.episodes import Episode
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.doors import WATCHERS, Assignment
from marl_sb3.errors import ConfigError, MarlSb3Error, refuse, require_known
from marl_sb3.evaluation.opponents import is_code, of_policy
from marl_sb3.evaluation.played import mean_of
from marl_sb3.extensions.store.load import load_policies, member_policy
from marl_sb3.league.pool import (
    Member,
    Score,
    Scores,
    Weights,
    drawn,
    plain_scores,
    points_matrix,
    read_member,
    read_scores,
    read_weights_of,
    to_evict,
)
from marl_sb3.league.settings import LeagueSettings
from marl_sb3.types import AgentID, PolicyID

_LEAST_GAMES = 20  # that a threshold of a win rate needs


class Exploiter(NamedTuple):
    """A policy that learns to beat another one."""

    of: PolicyID  # the other policy
    reset_every: PositiveInt | None = None  # iterations after which it begins anew
    reset_above: Fraction = 0.7  # share of points from which on it does


class _Side(NamedTuple):
    """The agents that one player plays together, and the policies that may."""

    agents: tuple[AgentID, ...]
    policies: tuple[PolicyID, ...]


class League(Assignment):
    """Chooses who plays whom in each episode; an object of it is given as `policy_mapping_fn`.

    In a share of the episodes (`self_play`) the present policies play all sides. In the others one of them, drawn
    among all that learn, plays one side, and members of the pool play the others. Members do not learn. Snapshots of
    one policy act in one batch.

    Args:
        seats: policy id -> the agents that it may play, for each policy that learns; the first one of an agent plays
            it in evaluations. A policy plays several agents only where these have the same spaces, and several policies
            may play an agent.
        folder: where members are written, each as a checkpoint that all commands load. None: they are not.
        settings: those of `LeagueSettings`.

    Attributes:
        members: the pool by name: fixed opponents first, then snapshots from the oldest to the newest.
        scores: policy id -> opponent -> results of games.
        is_copy: whether it is that of a shard.
        first_weights: exploiter -> the weights with which it begins anew.

    Raises:
        ConfigError: a setting is wrong, or there is no opponent.
    """

    runner = "league"  # see `ASSIGNED_RUNNERS`

    def __init__(
        self, seats: Mapping[PolicyID, Sequence[AgentID]], *, folder: str | Path | None = None, **settings: Any
    ) -> None:
        self.settings = _checked(settings)
        self.folder = None if folder is None else Path(folder)
        self.seats = {
            policy_id: (agents,) if isinstance(agents, str) else tuple(agents) for policy_id, agents in seats.items()
        }
        self.exploiters = {name: _exploiter(name, given) for name, given in (self.settings.exploiters or {}).items()}
        for name in self.exploiters:
            self.seats.setdefault(name, self.seats[self.settings.plays_like(name, self.mains)])
        self.bundles: dict[str, PolicyBundle] = {}  # of the fixed opponents that are policies
        self.members: dict[str, Member] = {}
        self.opponents = _named(self.settings.opponents or (), list(self.seats))  # name -> its path, or code
        for name, source in self.opponents.items():
            self.members[name] = Member(name)
            if not is_code(source):
                try:
                    bundle = load_policies(source)
                    # A member of another league is the one policy that it is, for all that this one may play.
                    own = member_policy(str(bundle.checkpoint), bundle.policies)
                    self.bundles[name] = bundle if own is None else of_policy(bundle, own)
                except MarlSb3Error as error:
                    raise ConfigError(f"league: opponent {name}: {error}", key="league.opponents") from error
        self.scores: dict[PolicyID, Scores] = {policy_id: {} for policy_id in self.seats}
        self._means: dict[PolicyID, float] = {}  # the mean return of its side in all games, those of long ago less
        self._begun: dict[PolicyID, int] = dict.fromkeys(self.exploiters, 0)  # the iteration in which it began anew
        self.first_weights: dict[PolicyID, Weights] = {}
        self.is_copy = False
        self._sides: tuple[_Side, ...] = ()
        self.candidates(list(dict.fromkeys(agent for own in self.seats.values() for agent in own)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy for a shard, or for checks: its state has no weights, and those that it has do not change."""
        copied = copy.copy(self)
        copied.members, copied.is_copy = dict(self.members), True
        copied.scores = {policy_id: dict(scores) for policy_id, scores in self.scores.items()}
        return copied

    @property
    def mains(self) -> list[PolicyID]:
        """The policies that learn and are no exploiters."""
        return [policy_id for policy_id in self.seats if policy_id not in self.exploiters]

    # --- Who plays ---------------------------------------------------------------------------------------------------

    @override
    def candidates(self, agents: Sequence[AgentID]) -> Mapping[AgentID, Sequence[PolicyID]]:
        """Return the policies that learn, by agent; the sides follow from them.

        Raises:
            ConfigError: sides or seats do not fit the agents, or no side has an opponent.
        """
        for policy_id, seats in self.seats.items():
            unknown = [agent for agent in seats if agent not in agents]
            if unknown:
                words = f"policy {policy_id!r} is to play agent {unknown[0]!r}; the env has {', '.join(agents)}"
                raise ConfigError(f"league: {words}", key="league")
        of_agents = {agent: [p for p, seats in self.seats.items() if agent in seats] for agent in agents}
        self._sides = tuple(_Side(side, self._may_play(side)) for side in self._split(agents, of_agents))
        if len(self._sides) < 2:
            words = f"there is one side, {', '.join(agents)}, and no other side to play against"
            raise ConfigError(f"league: {words}; accepted: sides of an env with several agents", key="league.sides")
        for name, bundle in self.bundles.items():
            if not any(self._can_play(self.members[name], side) for side in self._sides):
                words = f"opponent {name} plays {', '.join(bundle.policy_of)}; the env has {', '.join(agents)}"
                raise ConfigError(f"league: {words}: it plays no side", key="league.opponents")
        return of_agents

    def _split(
        self, agents: Sequence[AgentID], of_agents: Mapping[AgentID, Sequence[PolicyID]]
    ) -> list[tuple[AgentID, ...]]:
        """Return the agents of each side."""
        if self.settings.sides is None:
            firsts = dict.fromkeys(own[0] for own in of_agents.values() if own)
            if len(firsts) < 2:
                return [(agent,) for agent in agents]
            return [tuple(agent for agent in agents if of_agents[agent][:1] == [first]) for first in firsts]
        sides = [tuple(side) for side in self.settings.sides]
        listed = [agent for side in sides for agent in side]
        if sorted(listed) != sorted(agents):
            refuse("league: sides", [list(side) for side in sides], f"each of {', '.join(agents)} once", "league.sides")
        return sides

    def _may_play(self, agents: Sequence[AgentID]) -> tuple[PolicyID, ...]:
        able = tuple(policy_id for policy_id, seats in self.seats.items() if set(agents) <= set(seats))
        if not set(able) & set(self.mains):
            words = f"no policy plays all of {', '.join(agents)}, which are one side"
            raise ConfigError(f"league: {words}; accepted: sides whose agents a policy plays", key="league.sides")
        return able

    def _can_play(self, member: Member, side: _Side) -> bool:
        if member.policy_id is not None:
            return member.policy_id in side.policies
        bundle = self.bundles.get(member.name)
        return bundle is None or set(side.agents) <= set(bundle.policy_of)

    @override
    def assign(self, env_index: int, episode: int, rng: np.random.Generator) -> Mapping[AgentID, PolicyID]:
        """Return the policy, or the member of the pool, that plays each agent."""
        learners = list(self.seats)
        learner = learners[int(rng.integers(len(learners)))]
        number = int(rng.choice([n for n, side in enumerate(self._sides) if learner in side.policies]))
        hunted = self.exploiters[learner].of if learner in self.exploiters else None
        present = [self._present(side, hunted, rng) for side in self._sides]
        present[number] = learner
        if hunted is None and rng.random() >= self.settings.self_play:
            present = [own if n == number else self._opponent(learner, n, rng, own) for n, own in enumerate(present)]
        return {agent: player for side, player in zip(self._sides, present, strict=True) for agent in side.agents}

    def _present(self, side: _Side, hunted: PolicyID | None, rng: np.random.Generator) -> PolicyID:
        """Draw which of the policies that learn plays a side: the one that an exploiter hunts, where it can."""
        mains = [policy_id for policy_id in side.policies if policy_id not in self.exploiters]
        return hunted if hunted in mains else mains[int(rng.integers(len(mains)))]

    def _opponent(self, learner: PolicyID, side: int, rng: np.random.Generator, present: PolicyID) -> str:
        """Draw a member of the pool to play a side against a policy; a present policy if no member can play it."""
        able = [member for member in self.members.values() if self._can_play(member, self._sides[side])]
        fixed, share = [m for m in able if m.policy_id is None], self.settings.opponents_share
        snapshots = [m for m in able if m.policy_id is not None]
        if share is not None and fixed and snapshots:
            able = fixed if rng.random() < share else snapshots
        if not able:
            return present
        return drawn(rng, [member.name for member in able], self.scores[learner], self.settings.sampling)

    # --- Results -----------------------------------------------------------------------------------------------------

    def record(self, episode: Episode) -> None:
        """Count an episode in which a policy that learns played against a member, or an exploiter."""
        paid = {side: mean_of(map(episode.agent_returns.get, side.agents)) for side in self._sides}
        players = {side: episode.policy_of.get(side.agents[0], "") for side in self._sides}
        by_own_mean = not self.settings.rates(plays_all_sides=len(self.mains) == 1)
        for side, player in players.items():
            own = paid[side]
            if player not in self.seats or own is None:
                continue
            others = [other for other in self._sides if other is not side and paid[other] is not None]
            against = [other for other in others if self._counts(player, players[other])]
            if not against:
                continue
            mean = self._means.get(player, own)
            for other in against:
                theirs = mean if by_own_mean else paid[other]
                outcome = int(np.sign(own - (0.0 if theirs is None else theirs)))
                score = self.scores[player].get(players[other], Score())
                self.scores[player][players[other]] = score.after(outcome, own)
            self._means[player] = mean + 0.01 * (own - mean)

    def _counts(self, player: PolicyID, other: str) -> bool:
        """Whether the other one is a member of the pool, or one of the two is the exploiter of the other."""
        pairs = ((player, other), (other, player))
        return other in self.members or any(
            one in self.exploiters and self.exploiters[one].of == of for one, of in pairs if one != of
        )

    def share_of_points(self, policy_id: PolicyID, others: Sequence[str]) -> float | None:
        """Return the share of points of a policy against some others together; None if it has played few games."""
        scores = [self.scores[policy_id][other] for other in others if other in self.scores[policy_id]]
        games = sum(score.games for score in scores)
        return sum(score.points for score in scores) / games if games >= _LEAST_GAMES else None

    def ratings(self) -> dict[str, float | None]:
        """Return the rating of each policy that learns and of each member, on Elo's scale; None: no games yet.

        The first member, which never leaves the pool, is at 0, so that ratings may be compared over time.
        """
        from marl_sb3.results.rating import ratings

        everyone = [*self.members, *self.seats]
        scores_of = {**{name: member.scores for name, member in self.members.items()}, **self.scores}
        met = {each for name, scores in scores_of.items() for other in scores for each in (name, other)}
        names = [name for name in everyone if name in met]  # of thousands, few have met: they are squared
        points = points_matrix(names, scores_of)
        at = 0 if names[:1] == everyone[:1] and (points[0].any() or points[:, 0].any()) else None
        rated = {
            name: found.rating for name, found in zip(names, ratings(points, at), strict=True) if found is not None
        }
        return {name: rated.get(name) for name in everyone}

    def metric_names(self) -> list[str]:
        """Return the flat names of those metrics that every iteration has."""
        of_policies = [f"league/{name}/{policy_id}" for name in ("ratings", "points_mean") for policy_id in self.seats]
        return ["league/pool_size", "league/rating_mean", *of_policies]

    def metrics(self) -> Result:
        """Return what is below `league/` in the result of an iteration."""
        ratings = self.ratings()
        of_mains = [rating for name in self.mains if (rating := ratings[name]) is not None]
        return {
            "pool_size": len(self.members),
            "rating_mean": sum(of_mains) / len(of_mains) if of_mains else None,
            "ratings": ratings,
            "points_mean": {name: self.share_of_points(name, list(self.members)) for name in self.seats},
            "against": {
                name: {other: score.metrics() for other, score in scores.items()}
                for name, scores in self.scores.items()
            },
        }

    # --- The pool ----------------------------------------------------------------------------------------------------

    def is_due(self, policy_id: PolicyID, iteration: int) -> bool:
        """Whether a snapshot of a policy is to be taken after an iteration."""
        every, above = self.settings.snapshot_every, self.settings.snapshot_above
        if every and iteration % every == 0:
            return True
        newest = max((m.iteration for m in self.members.values() if m.policy_id == policy_id), default=0)
        if above is None or iteration == newest:
            return False
        share = self.share_of_points(policy_id, list(self.members))
        return share >= above if share is not None else newest == 0

    def ends(self, name: PolicyID, iteration: int) -> bool:
        """Whether an exploiter is to begin anew after an iteration."""
        exploiter = self.exploiters[name]
        share = self.share_of_points(name, [exploiter.of])
        is_old = exploiter.reset_every is not None and iteration - self._begun[name] >= exploiter.reset_every
        return is_old or (share is not None and share >= exploiter.reset_above)

    def begin_anew(self, name: PolicyID, iteration: int) -> None:
        """Remove the results of an exploiter, which begins anew."""
        self._begun[name] = iteration
        self._means.pop(name, None)
        self.scores[name] = {}
        for scores in self.scores.values():
            scores.pop(name, None)
        for member in self.members.values():
            member.scores.pop(name, None)

    def add(self, member: Member) -> list[Member]:
        """Add a snapshot to the pool, with the results of its policy; returns the members that a full pool removes."""
        own = self.scores[str(member.policy_id)]
        self.members[member.name] = replace(member, scores=dict(own))
        alike = [each for each in self.members.values() if each.policy_id == member.policy_id]
        if len(alike) <= self.settings.pool_size:
            return []
        leaving = to_evict(alike, self.settings.pool_size, self.ratings())
        for scores in self.scores.values():
            for name in leaving:
                scores.pop(name, None)
        return [self.members.pop(name) for name in leaving]

    # --- State -------------------------------------------------------------------------------------------------------

    @override
    def get_state(self) -> State:
        """Return the pool and the results; that of a copy has no weights."""
        snapshots = {
            n: m.to_plain(complete=not self.is_copy) for n, m in self.members.items() if n not in self.opponents
        }
        return {
            "members": snapshots,
            "scores": {policy_id: plain_scores(scores) for policy_id, scores in self.scores.items()},
            "means": dict(self._means),
            "begun": dict(self._begun),
            "first_weights": {} if self.is_copy else {name: dict(own) for name, own in self.first_weights.items()},
        }

    @override
    def set_state(self, state: StateReader) -> None:
        members, scores = state.fields("members"), state.fields("scores")
        means, begun = state.fields("means"), state.fields("begun")
        scores.require_names(list(self.seats))
        begun.require_names(list(self.exploiters))
        read = {name: read_member(name, members.fields(name), self.members.get(name)) for name in members.names()}
        for name, member in read.items():
            if member.policy_id not in self.seats or name != f"{member.policy_id}@{member.iteration}":
                words = f"POLICY@ITERATION, a snapshot of {', '.join(self.seats)}"
                raise members.error(name, f"{member.policy_id}@{member.iteration}", words)
        own = {policy_id: read_scores(scores.fields(policy_id)) for policy_id in self.seats}
        of_means = {name: means.number(name) for name in means.names()}
        since = {name: begun.integer(name) for name in self.exploiters}
        first = state.fields("first_weights")
        of_first = {name: read_weights_of(first.fields(name)) for name in first.names()}
        self.first_weights = {**self.first_weights, **of_first}
        self.members = {**{name: Member(name) for name in self.opponents}, **read}
        self.scores, self._means, self._begun = own, of_means, since


def _checked(settings: Mapping[str, Any]) -> LeagueSettings:
    """Return the settings of a league from arguments.

    Raises:
        ConfigError: there is no such setting, or a value is not accepted.
    """
    kinds = get_type_hints(LeagueSettings, include_extras=True)
    for name, value in settings.items():
        require_known(name, kinds, f"league: unknown setting {name!r}", "league")
        require(f"league.{name}", value, kinds[name])
    checked = LeagueSettings(**settings)
    if not checked.is_on:
        words = "there are no opponents; accepted: snapshot_every, snapshot_above or opponents"
        raise ConfigError(f"league: {words}", key="league")
    return checked


def _exploiter(name: PolicyID, given: Any) -> Exploiter:
    where, kinds = f"league.exploiters.{name}", get_type_hints(Exploiter, include_extras=True)
    if not isinstance(given, Mapping) or "of" not in given or not set(given) <= set(kinds):
        words = "{of: POLICY, reset_every: ITERATIONS or null, reset_above: SHARE}"
        refuse(where, given, words, "league.exploiters")
    return Exploiter(**{key: require(f"{where}.{key}", value, kinds[key]) for key, value in given.items()})


def _named(sources: Sequence[str], taken: Sequence[str]) -> dict[str, str]:
    """Name fixed opponents: a file by its last part, code by its place; a name that is taken gets a number."""
    named, numbers = dict[str, str](), Counter[str]()  # numbers: base -> the last one that was tried
    for source in sources:
        path = Path(source).absolute()
        # Of a member of another league, the name alone could be that of a snapshot of this one.
        own = f"{path.parents[1].name}.{path.name}" if "@" in path.name else path.name
        name = base = source if ":" in source else own
        while name in named or name in taken:
            numbers[base] += 1
            name = f"{base}-{numbers[base] + 1}"
        named[name] = source
    return named


WATCHERS.add("league", "marl_sb3.league.watcher:league_watcher")  # here, so that only those who use it load it
