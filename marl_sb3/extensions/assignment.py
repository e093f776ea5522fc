"""Policies that take turns: an `Assignment` chooses who plays each agent when an episode begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from typing_extensions import override

from marl_sb3.core.acting import Acted, Actor
from marl_sb3.core.config import shown
from marl_sb3.core.mapping import PolicyMapping
from marl_sb3.core.metrics import Episode, EpisodeTracker
from marl_sb3.core.state import SavedPart, State, StateReader
from marl_sb3.core.training import LocalRunner
from marl_sb3.core.vec_env import MultiAgentVecEnv, VecStep, assignment_rng
from marl_sb3.doors import Assignment
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, PolicyID


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
            words = "a mapping of agents to lists of policies"
            raise ConfigError(
                f"SampledAssignment: candidates is {shown(candidates)}; accepted: {words}", key="policies"
            )
        self._candidates = {a: (own,) if isinstance(own, str) else tuple(own) for a, own in candidates.items()}
        self.weights = dict(weights or {})
        self._require_weights()

    def _require_weights(self) -> None:
        known = list(dict.fromkeys(policy_id for own in self._candidates.values() for policy_id in own))
        for policy_id, weight in self.weights.items():
            if policy_id not in known:
                words = f"weights has policy {shown(policy_id)}; accepted: {', '.join(known)}"
                raise ConfigError(f"SampledAssignment: {words}", key="policies")
            if not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
                words = f"the weight of policy {policy_id!r} is {shown(weight)}; accepted: a number from 0 on"
                raise ConfigError(f"SampledAssignment: {words}", key="policies")

    @override
    def candidates(self, agents: Sequence[AgentID]) -> Mapping[AgentID, Sequence[PolicyID]]:
        unknown = [agent for agent in self._candidates if agent not in agents]
        if unknown:
            words = f"candidates names agent {unknown[0]!r}; the env has {', '.join(agents)}"
            raise ConfigError(f"SampledAssignment: {words}", key="policies")
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
            self._plays[index] = [self._number(agent, chosen, env_index, episode) for agent in self._candidates]
            self._episodes[index] += 1

    def _number(self, agent: AgentID, chosen: Any, env_index: int, episode: int) -> int:
        policy_id = chosen.get(agent) if isinstance(chosen, Mapping) else None
        if policy_id not in self._candidates[agent]:
            call = f"{type(self._assignment).__name__}.assign({env_index}, {episode}, ...)"
            words = f"{call} gives agent {agent!r} the policy {policy_id!r}"
            raise ConfigError(f"{words}; accepted: {', '.join(self._candidates[agent])}", key="policies")
        return self._candidates[agent].index(policy_id)

    @override
    def _seen_by(self, actor: Actor, step: VecStep) -> VecStep:
        number, columns = self._number_of[actor.rows.policy_id], list(actor.rows.agent_columns)
        plays, played = self._plays == number, self.played == number
        if plays[:, columns].all() and played[:, columns].all():
            return step
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
    def read_state(self, saved: SavedPart) -> Callable[[], dict[int, str]]:
        put_envs, put_assignment = super().read_state(saved), self._read(saved.fields("assignment"), saved.num_envs)

        def put() -> dict[int, str]:
            put_assignment()
            return put_envs()

        return put

    def _read(self, state: StateReader, num_envs: int) -> Callable[[], None]:
        """Check the state of the assignment; with another number of envs, episodes are counted from 0 on."""
        state.require_names(["seed", "episodes", "plays", "own"])
        seed, episodes = state.integer("seed"), state.counts("episodes", (num_envs,))
        plays = state.array("plays", np.int64, (num_envs, len(self._candidates)), 0)
        most = np.array([len(own) for own in self._candidates.values()])
        if (plays >= most).any():
            raise state.error("plays", plays, f"numbers of candidates, of which the agents have {most.tolist()}")
        own = state.fields("own")
        deepcopy(self._assignment).set_state(own)  # which refuses it, if anything does

        def put() -> None:
            self._assignment.set_state(own)
            self._seed = seed
            if num_envs == self.env.num_envs:
                self._episodes = episodes
                self._plays = self.played = plays

        return put
