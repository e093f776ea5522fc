"""E separate `ParallelEnv`s stepped one after the other, each agent's data written straight into its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marl_sb3.types import AgentID, Array, BoolArray, Observations
from marl_sb3.vec_env.action_log import ActionLog
from marl_sb3.vec_env.base import DictInfos, EnvStep, FinalObservations
from marl_sb3.vec_env.observations import put, zero_observations
from marl_sb3.vec_env.seeding import episode_seed, fresh_seed
from marl_sb3.vec_env.separate_envs import (
    EnvFactory,
    SeparateEnvs,
    agent_groups,
    require_same_agents,
    require_separate,
)
from marl_sb3.wrappers import wrap


@dataclass(frozen=True)
class _Place:
    """Where an agent stands in the arrays."""

    column: int  # on the agent axis
    group: int
    group_column: int  # on the agent axis of its group


@dataclass
class _Arrays:
    """An `EnvStep` in the making: fresh arrays, in which only what happened is filled in."""

    observations: tuple[Observations, ...]
    rewards: Array
    terminated: BoolArray
    truncated: BoolArray
    infos: list[Mapping[str, Any]] = field(default_factory=list)
    final_observations: dict[tuple[int, int], Any] = field(default_factory=dict)
    reset_infos: dict[int, Mapping[str, Any]] = field(default_factory=dict)


class SerialVecEnv(SeparateEnvs):
    """Takes any `ParallelEnv`, agents with unequal spaces too.

    Args:
        make_env: makes the env of an index; called once for each of the E envs.
        num_envs: E.
        seed: the run seed; None draws one.

    Raises:
        ConfigError: the envs differ in their agents or spaces, or are not separate envs, or there is no array for a
            kind of space.
    """

    def __init__(self, make_env: EnvFactory, num_envs: int, seed: int | None = None) -> None:
        self._envs = [wrap(make_env(index), index) for index in range(num_envs)]
        require_separate(self._envs)
        first = self._envs[0]
        for index, env in enumerate(self._envs):
            require_same_agents(env, index, first)
        self.num_envs = num_envs
        self.agents = tuple(first.possible_agents)
        self.groups = agent_groups(first)
        self.metadata = dict(first.metadata)
        self.render_mode = getattr(first.unwrapped, "render_mode", None)
        self.active = np.zeros((num_envs, len(self.agents)), dtype=np.bool_)
        self._places = {
            agent: _Place(column, number, place)
            for number, group in enumerate(self.groups)
            for place, (agent, column) in enumerate(zip(group.agents, group.columns, strict=True))
        }
        self._live: list[list[AgentID]] = [[] for _ in self._envs]  # in the order of `agents`
        self._ended: list[set[AgentID]] = [set() for _ in self._envs]
        self._reset_infos: list[Mapping[str, Any]] = [{} for _ in self._envs]
        self._agents_changed = False
        self._log = ActionLog(num_envs, self.groups)
        zero_observations(self.groups, num_envs)  # refuses what no array can hold
        self.seed(fresh_seed() if seed is None else seed)

    @property
    def envs(self) -> Sequence[Any]:
        """See `SeparateEnvs.envs`."""
        return self._envs

    def seed(self, seed: int) -> None:
        """See `MultiAgentVecEnv.seed`."""
        self._run_seed = seed
        self._episodes = [-1] * self.num_envs

    def reset(self, options: Sequence[Mapping[str, Any]] | None = None) -> tuple[Observations, ...]:
        """See `MultiAgentVecEnv.reset`."""
        self.observations = zero_observations(self.groups, self.num_envs)
        for index in range(self.num_envs):
            self._begin_episode(index, self.observations, None if options is None else options[index])
        self._log.begin(range(self.num_envs))
        self._mark_active()
        return self.observations

    def step(self, actions: Sequence[Array]) -> EnvStep:
        """See `MultiAgentVecEnv.step`."""
        acted = self.active
        self._log.record(actions)
        arrays = self._blank_arrays()
        for index in range(self.num_envs):
            self._step_env(index, self._given(index, [group[index] for group in actions]), arrays)
        if self._agents_changed:
            self._mark_active()
        if arrays.reset_infos:
            self._log.begin(arrays.reset_infos)
        self.observations = arrays.observations
        env_ended = np.zeros(self.num_envs, dtype=np.bool_)
        env_ended[list(arrays.reset_infos)] = True
        return EnvStep(
            observations=arrays.observations,
            rewards=arrays.rewards,
            terminated=arrays.terminated,
            truncated=arrays.truncated,
            acted=acted,
            env_ended=env_ended,
            final_observations=FinalObservations(arrays.final_observations),
            infos=DictInfos(arrays.infos),
            reset_infos=arrays.reset_infos,
        )

    def reset_infos(self) -> Sequence[Mapping[str, Any]]:
        """See `MultiAgentVecEnv.reset_infos`."""
        return self._reset_infos

    # --- One env -----------------------------------------------------------------------------------------------------

    def _begin_episode(
        self, index: int, observations: tuple[Observations, ...], options: Mapping[str, Any] | None
    ) -> None:
        self._episodes[index] += 1
        seed = episode_seed(self._run_seed, index, self._episodes[index])
        shown, self._reset_infos[index] = self._envs[index].reset(seed=seed, options=options)
        self._ended[index] = set()
        self._follow_agents(index)
        self._show(index, shown, observations)

    def _given(self, index: int, actions: Sequence[Array]) -> dict[AgentID, Any]:
        """The live agents' actions out of one env's, per group (A_group, ...)."""
        places = self._places
        return {agent: actions[places[agent].group][places[agent].group_column] for agent in self._live[index]}

    def _step_env(self, index: int, given: Mapping[AgentID, Any], arrays: _Arrays) -> None:
        places = self._places
        shown, rewards, terminated, truncated, infos = self._envs[index].step(given)
        for agent in given:
            column = places[agent].column
            arrays.rewards[index, column] = rewards[agent]
            if terminated[agent] or truncated[agent]:
                arrays.terminated[index, column] = terminated[agent]
                arrays.truncated[index, column] = truncated[agent]
                arrays.final_observations[index, column] = deepcopy(shown[agent])  # the env may reuse its array
                self._ended[index].add(agent)
        self._follow_agents(index)
        if self._live[index]:
            arrays.infos.append(infos)
            self._show(index, shown, arrays.observations)
        else:
            arrays.infos.append(deepcopy(infos))  # the reset comes before anyone reads them
            self._begin_episode(index, arrays.observations, None)
            arrays.reset_infos[index] = self._reset_infos[index]

    def _follow_agents(self, index: int) -> None:
        """Agents may join during an episode, but none that has ended comes back."""
        present, ended = self._envs[index].agents, self._ended[index]
        if ended or present != self._live[index]:
            self._live[index] = [agent for agent in self.agents if agent in present and agent not in ended]
            self._agents_changed = True

    def _show(self, index: int, shown: Mapping[AgentID, Any], observations: tuple[Observations, ...]) -> None:
        for agent in self._live[index]:
            place = self._places[agent]
            put(shown[agent], observations[place.group], (index, place.group_column))

    # --- Arrays ------------------------------------------------------------------------------------------------------

    def _mark_active(self) -> None:
        # A new array: `EnvStep.acted` keeps the old one.
        self.active = np.array([[agent in live for agent in self.agents] for live in self._live])
        self._agents_changed = False

    def _blank_arrays(self) -> _Arrays:
        shape = (self.num_envs, len(self.agents))
        return _Arrays(
            zero_observations(self.groups, self.num_envs),
            np.zeros(shape, dtype=np.float32),
            np.zeros(shape, dtype=np.bool_),
            np.zeros(shape, dtype=np.bool_),
        )

    # --- State -------------------------------------------------------------------------------------------------------

    def _progress(self) -> tuple[int, list[int], BoolArray]:
        ended = [[agent in ended for agent in self.agents] for ended in self._ended]
        return self._run_seed, self._episodes, np.array(ended, dtype=np.bool_)

    def _count_from(self, index: int, run_seed: int, episode: int) -> None:
        self._run_seed, self._episodes[index] = run_seed, episode - 1
        self._envs[index].continue_at(episode)

    def _restart(self, index: int) -> tuple[Observations, ...]:
        observations = zero_observations(self.groups, self.num_envs)
        self._begin_episode(index, observations, None)
        return observations

    def _replay_step(self, index: int, actions: Sequence[Array]) -> tuple[Observations, ...]:
        arrays = self._blank_arrays()
        self._step_env(index, self._given(index, actions), arrays)
        return arrays.observations

    def _live_agents(self, index: int) -> BoolArray:
        return np.array([agent in self._live[index] for agent in self.agents], dtype=np.bool_)

    def _adopt(self, index: int, live: Sequence[AgentID], ended: set[AgentID]) -> None:
        self._episodes[index] += 1
        self._live[index], self._ended[index] = list(live), ended
