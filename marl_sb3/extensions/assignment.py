"""Policies that take turns: an `Assignment` chooses who plays each agent when an episode begins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from marl_sb3.core.acting.actor import Acted, Actor
from marl_sb3.core.mapping import PolicyMapping
from marl_sb3.core.metrics.episodes import Episode, EpisodeTracker
from marl_sb3.core.state.randomness import preserve_rng
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.training.runner import LocalRunner
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.observations import AgentGroup
from marl_sb3.core.vec_env.seeding import assignment_rng
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.doors import Assignment
from marl_sb3.errors import ConfigError, described, refuse, require_known, shown
from marl_sb3.types import AgentID, Array, PolicyID, PolicyMappingFn


class SampledAssignment(Assignment):
    """Draws one of the candidates of each agent in each episode, independently of the other agents.

    Args:
        candidates: agent -> ids of policies; the first one plays in evaluations.
        weights: policy id -> how often it is drawn, relative to the others; policies that are left out have 1.

    Attributes:
        weights: may be changed in a training, and is part of checkpoints.

    Raises:
        ConfigError: `candidates` is no mapping, or a weight is no number from 0 on.
    """

    def __init__(
        self,
        candidates: Mapping[AgentID, Sequence[PolicyID] | PolicyID],
        weights: Mapping[PolicyID, float] | None = None,
    ) -> None:
        if not isinstance(candidates, Mapping):
            accepted = "a mapping of agents to lists of policies"
            refuse("SampledAssignment: candidates", candidates, accepted, "policies")
        self._candidates = {a: (own,) if isinstance(own, str) else tuple(own) for a, own in candidates.items()}
        self.weights = dict(weights or {})
        self._require_weights()

    def _require_weights(self) -> None:
        known = list(dict.fromkeys(policy_id for own in self._candidates.values() for policy_id in own))
        for policy_id, weight in self.weights.items():
            words = f"SampledAssignment: weights has policy {shown(policy_id)}"
            require_known(policy_id, known, words, "policies")
            if not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
                name = f"SampledAssignment: the weight of policy {policy_id!r}"
                refuse(name, weight, "a number from 0 on", "policies")

    @override
    def candidates(self, agents: Sequence[AgentID]) -> Mapping[AgentID, Sequence[PolicyID]]:
        _require_agents("SampledAssignment: candidates", self._candidates, agents)
        return self._candidates

    @override
    def assign(self, env_index: int, episode: int, rng: np.random.Generator) -> Mapping[AgentID, PolicyID]:
        return {agent: self._drawn(agent, policy_ids, rng) for agent, policy_ids in self._candidates.items()}

    def _drawn(self, agent: AgentID, policy_ids: Sequence[PolicyID], rng: np.random.Generator) -> PolicyID:
        weights = [float(self.weights.get(policy_id, 1.0)) for policy_id in policy_ids]
        total = sum(weights)
        if not total:
            words = f"no policy of agent {agent!r} has a weight above 0; its policies: {', '.join(policy_ids)}"
            raise ConfigError(f"SampledAssignment: {words}", key="policies")
        return policy_ids[rng.choice(len(policy_ids), p=[weight / total for weight in weights])]

    @override
    def get_state(self) -> State:
        self._require_weights()
        return {"weights": {policy_id: float(weight) for policy_id, weight in self.weights.items()}}

    @override
    def set_state(self, state: StateReader) -> None:
        saved = state.fields("weights")
        self.weights = {policy_id: saved.number(policy_id, 0.0) for policy_id in saved.names()}


class SwappedAssignment(Assignment):
    """Plays the same policies in each episode, and draws which of them plays which agent: sides swap, or teams.

    Args:
        policy_of: agent -> the policy that plays it in evaluations.
        groups: agents that swap policies with each other; None: all of them do.
    """

    def __init__(
        self, policy_of: Mapping[AgentID, PolicyID], groups: Iterable[Sequence[AgentID]] | None = None
    ) -> None:
        self._policy_of = dict(policy_of)
        self._groups = [list(self._policy_of)] if groups is None else [list(group) for group in groups]

    @override
    def candidates(self, agents: Sequence[AgentID]) -> Mapping[AgentID, Sequence[PolicyID]]:
        _require_agents("SwappedAssignment: policy_of", self._policy_of, agents)
        of_groups = [(group, [self._policy_of[agent] for agent in group]) for group in self._groups]
        return {agent: (self._policy_of[agent], *others) for group, others in of_groups for agent in group}

    @override
    def assign(self, env_index: int, episode: int, rng: np.random.Generator) -> Mapping[AgentID, PolicyID]:
        orders = [(group, rng.permutation(len(group)).tolist()) for group in self._groups]
        return {
            agent: self._policy_of[group[n]] for group, order in orders for agent, n in zip(group, order, strict=True)
        }


def _require_agents(where: str, given: Iterable[AgentID], agents: Sequence[AgentID]) -> None:
    for agent in given:
        if agent not in agents:
            raise ConfigError(f"{where} names agent {agent!r}; the env has {', '.join(agents)}", key="policies")


# --- Functions of the agent and the episode, as RLlib has them -------------------------------------------------------


class MappedEpisode:
    """The episode of which a function `policy_mapping_fn(agent, episode)` says who plays the agent."""

    def __init__(self, env_index: int, number: int, rng: np.random.Generator) -> None:
        self.env_index = env_index  # index of the env among all envs
        self.number = number  # of the episode in this env, from 0 on
        self._rng = rng

    @cached_property
    def rng(self) -> np.random.Generator:
        """Follows from the run's seed, the env and the number; each agent of the episode gets the same numbers."""
        return deepcopy(self._rng)

    @property
    def id_(self) -> int:
        """A number below 2**60 that follows from env and number, and so does its `hash`; in RLlib it is a string."""
        return int(np.random.SeedSequence((self.env_index, self.number)).generate_state(1, np.uint64)[0]) >> 4

    @property
    def episode_id(self) -> int:
        """The same, by the name that it has in RLlib's old API."""
        return self.id_


class _WatchedEpisode(MappedEpisode):
    """Notes whether a function reads anything of it."""

    was_read = False

    @override
    def __getattribute__(self, name: str) -> Any:
        if name != "was_read":
            self.was_read = True
        return super().__getattribute__(name)


_TRIED = list(product(range(4), range(4)))  # env index and number of the episodes that a function is tried in


class FunctionAssignment(Assignment):
    """Asks a function who plays each agent in an episode.

    Where the function reads nothing of the episode, its answer for the agent can never change. Any other agent may be
    played by every policy that fits its spaces: the function may name it later. The first of them is the answer in
    episode 0 of env 0, with a generator of the seed 0. Where agents differ in spaces, a policy fits those of the agents
    for which the function names it in 16 episodes.

    Args:
        function: takes the agent and a `MappedEpisode`; the id of the policy that it returns follows from these alone.
        policy_ids: of all policies.
        groups: the agents with the same spaces, each.

    Raises:
        ConfigError: the function raises, returns no policy, or another one when it is asked again; or it is not known
            which agents a policy fits. `assign` raises it, too. The message names agent, env and episode.
    """

    def __init__(
        self, function: PolicyMappingFn, policy_ids: Sequence[PolicyID], groups: Iterable[Sequence[AgentID]]
    ) -> None:
        self._function, self._policy_ids = function, list(policy_ids)
        self._candidates: dict[AgentID, Sequence[PolicyID]] = {}
        with preserve_rng():  # a function that draws from the global generators is refused, and changes nothing
            self._candidates = self._found(list(groups))

    def _found(self, groups: Sequence[Sequence[AgentID]]) -> dict[AgentID, Sequence[PolicyID]]:
        watched = {agent: _WatchedEpisode(0, 0, assignment_rng(0, 0, 0)) for group in groups for agent in group}
        first = {agent: self._answer(agent, episode) for agent, episode in watched.items()}
        varying = {agent for agent, episode in watched.items() if episode.was_read}
        fixed = {agent: answer for agent, answer in first.items() if agent not in varying}
        named = [
            {self._tried(agent, *each, fixed.get(agent)) for agent in group for each in _TRIED} for group in groups
        ]
        unnamed = [policy_id for policy_id in self._policy_ids if not any(policy_id in own for own in named)]
        varied = [own for own, group in zip(named, groups, strict=True) if varying.intersection(group)]
        if unnamed and len(varied) > 1:
            words = f"names policy {unnamed[0]!r} in none of {len(_TRIED)} episodes, and agents differ in their spaces"
            accepted = "an Assignment, whose candidates say who may play whom"
            raise ConfigError(f"policy_mapping_fn {words}; accepted: {accepted}", key="policies")
        for own in varied:
            own |= set(unnamed)
        return {
            agent: tuple(dict.fromkeys([first[agent], *(p for p in self._policy_ids if agent in varying and p in own)]))
            for own, group in zip(named, groups, strict=True)
            for agent in group
        }

    def _tried(self, agent: AgentID, env_index: int, number: int, fixed: PolicyID | None) -> PolicyID:
        """Return the answer in an episode: the same when it is asked again; the fixed one if there is one."""
        episodes = [MappedEpisode(env_index, number, assignment_rng(0, env_index, number)) for _ in range(2)]
        one = fixed or self._answer(agent, episodes[0])
        other = self._answer(agent, episodes[1])
        if one != other:
            words = f"returned {one!r} and then {other!r} {_where(agent, episodes[0])}"
            accepted = "answers that follow from agent and episode alone; episode.rng draws"
            raise ConfigError(f"policy_mapping_fn {words}; accepted: {accepted}", key="policies")
        return one

    def _answer(self, agent: AgentID, episode: MappedEpisode) -> PolicyID:
        accepted = self._candidates.get(agent, self._policy_ids)
        try:
            answer = self._function(agent, episode)
        except Exception as error:  # code of the user's
            fault = f"raised {described(error)}"
            raise ConfigError(f"policy_mapping_fn {fault} {_where(agent, episode)}", key="policies") from error
        if not isinstance(answer, str) or answer not in accepted:
            words = f"returned {shown(answer)} {_where(agent, episode)}; accepted: {', '.join(accepted)}"
            raise ConfigError(f"policy_mapping_fn {words}", key="policies")
        return accepted[accepted.index(answer)]  # not a string of NumPy

    @override
    def candidates(self, agents: Sequence[AgentID]) -> Mapping[AgentID, Sequence[PolicyID]]:
        return self._candidates

    @override
    def assign(self, env_index: int, episode: int, rng: np.random.Generator) -> Mapping[AgentID, PolicyID]:
        return {agent: self._answer(agent, MappedEpisode(env_index, episode, rng)) for agent in self._candidates}


def _where(agent: AgentID, episode: MappedEpisode) -> str:
    return f"for agent {agent!r} in episode {episode.number} of env {episode.env_index}"


def _takes_episode(function: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return False  # some builtins have no signature; if they do not accept an agent, the call fails
    takes_one, takes_two = (_accepts(signature, given) for given in (["agent"], ["agent", "episode"]))
    if not takes_one and not takes_two:
        accepted = "a function of one argument, the agent id, or of two, the agent id and the episode"
        raise ConfigError(f"policy_mapping_fn takes {signature}; accepted: {accepted}", key="policies")
    _, *others = signature.parameters.values()
    return takes_two and (
        not takes_one or others[0].kind is inspect.Parameter.VAR_POSITIONAL or "episode" in others[0].name
    )


def _accepts(signature: inspect.Signature, given: Sequence[str]) -> bool:
    try:
        signature.bind(*given)
    except TypeError:
        return False
    return True


# --- Stepping envs whose agents are played by other policies in each episode -----------------------------------------


class AssignedRunner(LocalRunner):
    """A `LocalRunner` that asks an `Assignment` when an episode begins, and shows each policy only what it plays.

    A policy has a row for each agent that it may play. It sees steps in which the rows that others play wait. A step
    that ends an episode has the first observations of the next one: who acts next follows from the next episode, and
    whose rewards and ends these are from the one that is over.

    Args:
        mapping: with the assignment.
        first_env: index of the first env among those of all shards.
        others: arguments of `LocalRunner`.

    Attributes:
        played: see `LocalRunner`.
    """

    played: Array
    _lowest: ClassVar[int] = 0  # the lowest number of who plays an agent

    def __init__(
        self,
        mapping: PolicyMapping,
        env: MultiAgentVecEnv,
        policies: Mapping[PolicyID, Any],
        tracker: EpisodeTracker,
        *,
        first_env: int = 0,
        **others: Any,
    ) -> None:
        super().__init__(env, policies, tracker, **others)
        assert mapping.assignment is not None, "a LocalRunner is for all others"
        self._assignment, self._candidates = mapping.assignment, mapping.candidates
        self._seed, self._first_env = mapping.seed, first_env
        self._episodes = np.zeros(env.num_envs, dtype=np.int64)  # that have begun in each env
        # (E, A) the number of the candidate that plays each agent in the running episodes; never changed in place.
        self._plays = self.played = np.zeros((env.num_envs, len(env.agents)), dtype=np.int64)
        self._number_of = {  # policy id -> (A,) its number among the candidates of each agent; -1: it is none
            policy_id: np.array([own.index(policy_id) if policy_id in own else -1 for own in self._candidates.values()])
            for policy_id in policies
        }
        tracker.policies_in = self._policies_in

    @staticmethod
    def read_mapping(mapping: Any, policy_ids: Sequence[PolicyID], groups: Sequence[AgentGroup]) -> Any:
        """Return an `Assignment` for a function of the agent and the episode, and anything else as it is.

        A function that can do without a second argument gets the episode if that is one of `*args`, or is called
        `episode`.

        Raises:
            ConfigError: a function takes other arguments; see `FunctionAssignment` besides.
        """
        if isinstance(mapping, (Mapping, Assignment)) or not callable(mapping) or not _takes_episode(mapping):
            return mapping
        return FunctionAssignment(mapping, policy_ids, [group.agents for group in groups])

    # --- Who plays ---------------------------------------------------------------------------------------------------

    def _policies_in(self, env_index: int) -> dict[AgentID, PolicyID]:
        """Return agent -> the policy that plays it in the running episode of an env."""
        numbers = self._plays[env_index].tolist()
        return {agent: own[number] for (agent, own), number in zip(self._candidates.items(), numbers, strict=True)}

    def _assign(self, env_indices: Sequence[int]) -> None:
        """Choose who plays in the episodes that begin in these envs."""
        self._plays = self._plays.copy()
        for index in env_indices:
            env_index, episode = self._first_env + index, int(self._episodes[index])
            rng = assignment_rng(self._seed, env_index, episode)
            chosen = self._assignment.assign(env_index, episode, rng)
            self._plays[index] = self._numbers_of(index, chosen, f"assign({env_index}, {episode}, ...)")
            self._episodes[index] += 1

    def _numbers_of(self, index: int, chosen: Any, call: str) -> list[int]:
        """Return the number of the candidate that plays each agent of an env, as the assignment has chosen."""
        return [self._number(agent, chosen, call) for agent in self._candidates]

    def _number(self, agent: AgentID, chosen: Any, call: str) -> int:
        policy_id = chosen.get(agent) if isinstance(chosen, Mapping) else None
        if policy_id not in self._candidates[agent]:
            words = f"{type(self._assignment).__name__}.{call} gives agent {agent!r} the policy {policy_id!r}"
            raise ConfigError(f"{words}; accepted: {', '.join(self._candidates[agent])}", key="policies")
        return self._candidates[agent].index(policy_id)

    @override
    def _seen_by(self, actor: Actor, step: VecStep) -> VecStep:
        number, columns = self._number_of[actor.rows.policy_id], list(actor.rows.agent_columns)
        plays, played = self._plays == number, self.played == number
        if plays[:, columns].all() and played[:, columns].all():
            return step
        return seen_by_players(step, plays, played)

    @override
    def _act(self, actor: Actor, step: VecStep, actions: Sequence[Array]) -> Acted:
        acted = actor.act(self._seen_by(actor, step))
        if acted.stepping is not None:  # an env takes a step whoever acts in it
            acted = acted._replace(stepping=step.to_act.any(axis=1).repeat(len(actor.rows.agents)))
        actor.rows.put_actions(acted.actions, actions, acted.acting)
        return acted

    # --- Episodes ----------------------------------------------------------------------------------------------------

    @override
    def _record(self, step: VecStep) -> Sequence[Episode]:
        episodes = super()._record(step)
        self.played = self._plays
        if np.count_nonzero(step.episode_done):
            self._assign(np.flatnonzero(step.episode_done).tolist())
        return episodes

    @override
    def _begin_episodes(self) -> None:
        self._assign(range(self.env.num_envs))
        super()._begin_episodes()

    @override
    def _restart(self, env_indices: Sequence[int]) -> None:
        self._assign(env_indices)
        super()._restart(env_indices)

    @override
    def seed(self, seed: int) -> None:
        super().seed(seed)
        self._seed = seed

    # --- State -------------------------------------------------------------------------------------------------------

    @override
    def get_state(self) -> State:
        own = {"seed": self._seed, "episodes": self._episodes.copy(), "plays": self._plays.copy()}
        return {**super().get_state(), "assignment": {**own, "own": self._assignment.get_state()}}

    @override
    def read_state(self, saved: StateReader) -> Callable[[], dict[int, str]]:
        """With another number of envs, episodes are counted from 0 on."""
        put_envs, state, num_envs = super().read_state(saved), saved.fields("assignment"), saved.num_envs
        state.require_names(["seed", "episodes", "plays", "own"])
        seed, episodes = state.integer("seed"), state.counts("episodes", (num_envs,))
        plays = state.array("plays", np.int64, (num_envs, len(self._candidates)), self._lowest)
        most = np.array([len(own) for own in self._candidates.values()])
        if (plays >= most).any():
            raise state.error("plays", plays, f"numbers of candidates, of which the agents have {most.tolist()}")
        own = state.fields("own")
        deepcopy(self._assignment).set_state(own)  # which refuses it, if anything does

        def put() -> dict[int, str]:
            self._assignment.set_state(own)
            self._seed = seed
            if num_envs == self.env.num_envs:
                self._episodes = episodes
                self._plays = self.played = plays
            return put_envs()

        return put


def seen_by_players(step: VecStep, plays: Array, played: Array) -> VecStep:
    """Return a step as those see it who play some agents: all others wait.

    Args:
        plays: (E, A) bool, the agents that they play from now on.
        played: (E, A) bool, those that they have played in the step.
    """
    acted = step.acted & played
    return replace(
        step,
        acted=acted,
        in_play=acted if step.in_play is step.acted else step.in_play & played,
        terminated=step.terminated & played,
        truncated=step.truncated & played,
        to_act=step.to_act & plays,
        chosen={place: action for place, action in step.chosen.items() if plays[place]},
    )
