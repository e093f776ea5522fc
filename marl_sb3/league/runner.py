"""Step envs in which members of a league's pool play beside the policies that learn."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch as th
from typing_extensions import override

from marl_sb3.core.acting.actor import Actor
from marl_sb3.core.acting.policy import PredictingPolicy
from marl_sb3.core.mapping import PolicyMapping, rows_of_policy
from marl_sb3.core.metrics.episodes import Episode, EpisodeTracker
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.rows import process_rows
from marl_sb3.core.sb3.tensors import weight_forms
from marl_sb3.core.state.state import State, StateReader, TensorFile
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.observations import AgentLayout
from marl_sb3.core.vec_env.seeding import Stream, spawned
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.opponents import Opponent, misfit, opponents_of, put_answer
from marl_sb3.extensions.assignment import AssignedRunner, seen_by_players
from marl_sb3.league.league import League
from marl_sb3.league.pool import Member, read_member, read_weights_of
from marl_sb3.league.snapshots import SnapshotBatch, acts_in_batch
from marl_sb3.types import AgentID, Array, PolicyID

_NOBODY = -1  # no member: a policy of the training plays the agent


class LeagueRunner(AssignedRunner):
    """An `AssignedRunner` in whose episodes members of the pool of a `League` may play, too.

    Args: see `AssignedRunner`.
    """

    _lowest = _NOBODY

    def __init__(
        self,
        mapping: PolicyMapping,
        env: MultiAgentVecEnv,
        policies: Mapping[PolicyID, Any],
        tracker: EpisodeTracker,
        **others: Any,
    ) -> None:
        super().__init__(mapping, env, policies, tracker, **others)
        assert isinstance(self._assignment, League)
        if env.steps_apart:
            raise ConfigError("league: clients step these envs; accepted: envs that the training steps", key="league")
        self._league: League = self._assignment
        self._layout = AgentLayout(env.agents, env.groups)
        self._policies = policies
        shape = (env.num_envs, len(env.agents))
        self._numbers: dict[str, int] = {}  # member -> its number in the arrays
        self._guests = np.full(shape, _NOBODY)  # (E, A) numbers of those who play; never changed in place
        self._playing: dict[str, Array] | None = None  # see `_players`; None: it is to be found out
        self._batches = {
            policy_id: SnapshotBatch(part.actor.policy.algorithm)
            for policy_id, part in policies.items()
            if acts_in_batch(part.actor.policy.algorithm) and not part.processing.statistics
        }
        self._actors: dict[str, list[Actor]] = {}  # member, or policy whose snapshots act in one batch -> its actors
        self._retired: dict[str, Member] = {}  # members that have left the pool, and still play
        self._known: dict[str, Member] = {}  # the pool as it was last read
        self._of_batch: dict[PolicyID, list[str]] = {}  # the snapshots of each batch
        code = {name: each for name, each in self._league.opponents.items() if name not in self._league.bundles}
        self._code: dict[str, Mapping[AgentID, Opponent]] = {
            name: opponents_of(source, env, env.agents) for name, source in code.items()
        }
        for name, bundle in self._league.bundles.items():
            seats = {agent: own for agent, own in bundle.policy_of.items() if agent in env.agents}
            if (fault := misfit(bundle, env, seats)) is not None:
                raise ConfigError(f"league: opponent {name}: {fault}", key="league.opponents")
            made = [rows_of_policy(env, policy_id, seats) for policy_id in dict.fromkeys(seats.values())]
            self._actors[name] = [bundle.make_actor(rows, deterministic=False) for rows in made]
        for policy_id, batch in self._batches.items():
            self._actors[policy_id] = [self._actor_of(policy_id, batch, policies[policy_id].processing)]
        # Of snapshots in a batch, whether what they do depends on earlier steps of an episode.
        self._remembers = {p: bool(policies[p].processing.settings.changed()) for p in self._batches}
        self._read_members()

    def _actor_of(self, policy_id: PolicyID, policy: Any, processing: Processing) -> Actor:
        rows = self._policies[policy_id].actor.rows
        return Actor(rows, policy, process_rows(processing, rows, policy.algorithm.gamma, learns=False))

    # --- The pool ----------------------------------------------------------------------------------------------------

    @override
    def _refresh(self) -> None:
        super()._refresh()
        self._read_members()

    def _read_members(self) -> None:
        """Take over what has changed in the pool; who has left it plays the running episodes to their end."""
        self._playing = None
        known = {**self._retired, **self._known, **self._league.members}
        self._retired = {name: known[name] for name in self._present() if name not in self._league.members}
        self._known = dict(self._league.members)
        for policy_id, batch in self._batches.items():
            everybody = {**self._retired, **self._league.members}.values()
            members = [m for m in everybody if m.policy_id == policy_id and m.weights is not None]
            names = [member.name for member in members]
            if names and names != self._of_batch.get(policy_id):
                batch.set_members(members)
                self._of_batch[policy_id] = names
        for name in [n for n in self._actors if n not in known and n not in self._policies]:
            del self._actors[name]

    def _present(self) -> list[str]:
        """Return the members that play now; in this order, equal trainings have equal checkpoints."""
        names = list(self._numbers)
        return sorted(names[number] for number in np.unique(self._guests).tolist() if number != _NOBODY)

    def _actors_of(self, name: str) -> list[Actor]:
        """Return the actors of a member that acts alone; they are made when it first plays."""
        if name not in self._actors:
            member = self._league.members.get(name) or self._retired[name]
            self._actors[name] = [self._snapshot_actor(member)]
        return self._actors[name]

    def _snapshot_actor(self, member: Member) -> Actor:
        part = self._policies[str(member.policy_id)]
        algorithm = copy.copy(part.actor.policy.algorithm)
        # A distribution keeps tensors of the latest gradient, which cannot be copied; each use sets them anew.
        modules = algorithm.policy.modules()
        cached = [each.action_dist for each in modules if hasattr(each, "action_dist")]
        algorithm.policy = copy.deepcopy(algorithm.policy, {id(each): copy.copy(each) for each in cached})
        if hasattr(algorithm, "exploration_final_eps"):
            algorithm.exploration_rate = algorithm.exploration_final_eps
        processing = copy.deepcopy(part.processing)
        processing.read_state(StateReader(member.statistics, f"statistics of {member.name}"))()
        with th.no_grad():
            for name, tensor in algorithm.policy.state_dict().items():
                tensor.copy_(th.from_numpy((member.weights or {})[f"policy.{name}"]))
        return self._actor_of(str(member.policy_id), PredictingPolicy(algorithm, deterministic=False), processing)

    # --- Who plays ---------------------------------------------------------------------------------------------------

    @override
    def _numbers_of(self, index: int, chosen: Any, call: str) -> list[int]:
        self._guests, self._playing, numbers = self._guests.copy(), None, list[int]()
        for column, agent in enumerate(self._candidates):
            name = chosen[agent]
            is_guest = name in self._league.members
            self._guests[index, column] = self._numbers.setdefault(name, len(self._numbers)) if is_guest else _NOBODY
            numbers.append(_NOBODY if is_guest else self._number(agent, chosen, call))
        return numbers

    @override
    def _policies_in(self, env_index: int) -> dict[AgentID, PolicyID]:
        names = list(self._numbers)
        guests, plays = self._guests[env_index].tolist(), self._plays[env_index].tolist()
        return {
            agent: own[number] if guest == _NOBODY else names[guest]
            for (agent, own), guest, number in zip(self._candidates.items(), guests, plays, strict=True)
        }

    # --- Steps -------------------------------------------------------------------------------------------------------

    @override
    def _actions_of_others(self, step: VecStep) -> list[Array]:
        actions = super()._actions_of_others(step)
        for name, plays in self._players().items():
            if name in self._code:
                self._ask(name, step, plays, actions)
                continue
            for actor in self._actors_of(name):
                acted = actor.act(seen_by_players(step, plays, plays))
                actor.rows.put_actions(acted.actions, actions, acted.acting)
        return actions

    def _players(self) -> dict[str, Array]:
        """Return which agents, (E, A) bool, each member plays that plays now; snapshots in a batch by their policy."""
        if self._playing is None:
            self._playing = {}
            for policy_id, members in self._of_batch.items():
                places = np.full(len(self._numbers) + 1, _NOBODY)  # of those in the batch; the last is nobody's
                for place, name in enumerate(members):
                    if name in self._numbers:
                        places[self._numbers[name]] = place
                of_agents = places[self._guests]
                if (of_agents != _NOBODY).any():
                    columns = list(self._actors[policy_id][0].rows.agent_columns)
                    self._batches[policy_id].playing = of_agents[:, columns].reshape(-1)
                    self._playing[policy_id] = of_agents != _NOBODY
            in_batches = {name for members in self._of_batch.values() for name in members}
            self._playing |= {
                n: self._guests == self._numbers[n] for n in sorted(self._present()) if n not in in_batches
            }
        return self._playing

    def _ask(self, name: str, step: VecStep, plays: Array, actions: Sequence[Array]) -> None:
        """Let code act for its agents; what it draws follows from the seed, the env, the episode and the step."""
        for index, column in np.argwhere(step.to_act & plays).tolist():
            agent, length = self.env.agents[column], self.tracker.running(index)[0]
            env_index, episode = self._first_env + index, int(self._episodes[index]) - 1
            rng = np.random.default_rng(spawned(self._seed, Stream.LEAGUE, env_index, episode, column, length))
            where = f"opponent {name}, agent {agent!r}, env {env_index}, episode {episode}, step {length + 1} of it"
            put_answer(self._code[name][agent], self._layout, (index, agent), step, actions, rng, where)

    @override
    def _record(self, step: VecStep) -> Sequence[Episode]:
        played = self._players()
        episodes = super()._record(step)
        plays, nobody = self._players(), np.zeros(step.acted.shape, dtype=np.bool_)
        for name in plays.keys() - played.keys() - self._code.keys():
            for actor in self._actors_of(name):
                actor.step = 0  # counted since they play, as by those that a resumed run makes anew
        for name in dict.fromkeys([*played, *plays]):
            if name not in self._code and (name not in self._batches or self._remembers[name]):
                seen = seen_by_players(step, plays.get(name, nobody), played.get(name, nobody))
                for actor in self._actors_of(name):
                    actor.observe(seen)
        return episodes

    # --- Episodes ----------------------------------------------------------------------------------------------------

    @override
    def _begin_episodes(self) -> None:
        super()._begin_episodes()
        for actor in itertools.chain.from_iterable(self._actors.values()):
            actor.begin_episodes()

    @override
    def _restart(self, env_indices: Sequence[int]) -> None:
        super()._restart(env_indices)
        for actor in itertools.chain.from_iterable(self._actors.values()):
            actor.restart_envs(env_indices)

    # --- State -------------------------------------------------------------------------------------------------------

    @override
    def get_state(self) -> State:
        self._read_members()
        present, league = self._present(), self._league
        places = {self._numbers[name]: place for place, name in enumerate(present)} | {_NOBODY: _NOBODY}
        # The state of a shard has the weights of those who play in it: they may have left the pool when it goes on.
        there = {**league.members, **self._retired}
        kept = {name: there[name] for name in present if name in there}
        guests = {
            "names": present,
            "plays": np.vectorize(places.__getitem__, otypes=[np.int64])(self._guests),
            "members": {
                name: member.to_plain(complete=True)
                for name, member in kept.items()
                if member.policy_id is not None and (league.is_copy or name in self._retired)
            },
            "actors": {
                name: [actor.get_state() for actor in self._actors_of(name)]
                for name in sorted(self._players())
                if name not in self._code
            },
        }
        return {**super().get_state(), "guests": guests}

    @override
    def read_state(self, saved: StateReader) -> Callable[[], dict[int, str]]:
        guests = saved.fields("guests")
        self._require_fitting(saved.fields("assignment").fields("own").fields("members"))
        self._require_fitting(guests.fields("members"))
        put_others = super().read_state(saved)
        names, members, actors = guests.strings("names"), guests.fields("members"), guests.fields("actors")
        known = {*self._league.opponents, *members.names(), *saved.fields("assignment").fields("own").fields("members")}
        if strange := [name for name in names if name not in known]:
            raise guests.error("names", strange[0], "a member of the pool, or one that has left it")
        plays = guests.array("plays", np.int64, (saved.num_envs, len(self._candidates)), _NOBODY)
        if (plays >= len(names)).any():
            raise guests.error("plays", plays, f"indices of {len(names)} names")
        kept = {name: read_member(name, members.fields(name), None) for name in members.names()}

        def put() -> dict[int, str]:
            lost = put_others()
            if saved.num_envs == self.env.num_envs:
                self._retired, self._numbers = kept, {name: number for number, name in enumerate(names)}
                self._guests = plays
                self._league.members.update({n: m for n, m in kept.items() if n in self._league.members})
                self._read_members()
                for name in actors.names():
                    states = actors.listed(name)
                    for key, actor in zip(states, self._actors_of(name), strict=True):
                        actor.read_state(states.fields(key))()
            return lost

        return put

    def _require_fitting(self, members: StateReader) -> None:
        """Refuse snapshots whose weights are not of the form of their policy's."""
        for name in members.names():
            member = members.fields(name)
            policy_id = member.string("policy")
            if policy_id not in self._policies:
                raise member.error("policy", policy_id, f"one of {', '.join(self._policies)}")
            if "weights" in member:
                forms = weight_forms(self._policies[policy_id].actor.policy.algorithm)
                TensorFile(f"{member.where}/weights", read_weights_of(member.fields("weights"))).require(forms)
