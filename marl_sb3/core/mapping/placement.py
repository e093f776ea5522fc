"""The places of a policy's agents in the arrays of a `MultiAgentVecEnv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marl_sb3.core.vec_env import AgentGroup, MultiAgentVecEnv, ZeroBased
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, BoolArray, Observations, PolicyID


@dataclass(frozen=True)
class PolicyRows:
    """The rows of one policy: row `e * len(agents) + i` is its i-th agent in env e."""

    policy_id: PolicyID  # the policy
    num_envs: int  # number of envs, E
    num_agents: int  # number of all agents of an env
    group_index: int  # the group that its agents belong to; they all have the same spaces
    group: AgentGroup  # that group
    agents: tuple[AgentID, ...]  # its agents, in the env's order
    agent_columns: tuple[int, ...]  # their indices on the axis of all agents
    group_columns: tuple[int, ...]  # their indices on the axis of the group
    steps_apart: bool = False  # see `MultiAgentVecEnv`

    @property
    def num_rows(self) -> int:
        """E times the number of the policy's agents."""
        return self.num_envs * len(self.agents)

    def observations(self, groups: Sequence[Observations]) -> Observations:
        """(rows, ...) from the observations of all groups, counted from 0, in new arrays."""
        columns, of_group = self._in_group, groups[self.group_index]
        rows: Observations
        if isinstance(of_group, dict):
            rows = {key: array[:, columns].reshape(-1, *array.shape[2:]).copy() for key, array in of_group.items()}
        else:
            rows = of_group[:, columns].reshape(-1, *of_group.shape[2:]).copy()
        zero_based = self.zero_based_observations
        return zero_based.from_rows(rows) if zero_based.shifts else rows

    def masks(self, groups: Sequence[BoolArray | None]) -> BoolArray | None:
        """Return the rows' action masks, (rows, n), from those of all groups; None if the env gives none."""
        of_group = groups[self.group_index]
        return None if of_group is None else of_group[:, self._in_group].reshape(self.num_rows, -1).copy()

    def of_envs(self, env_indices: Sequence[int]) -> BoolArray:
        """Return (rows,) bool: True for the rows of these envs."""
        return np.isin(np.arange(self.num_envs), list(env_indices)).repeat(len(self.agents))

    def of_agents(self, per_agent: Array) -> Array:
        """Return the rows' values, (rows,), from an array over (E, all agents)."""
        return per_agent[:, self._among_all].reshape(-1)

    def put_actions(self, actions: Array, groups: Sequence[Array], chosen: BoolArray | None = None) -> None:
        """Write the rows' actions, (rows, ...), as the env takes them, into the arrays of all groups.

        Args:
            chosen: (rows,) bool; only those of these rows. None: all.
        """
        by_env = actions.reshape(self.num_envs, len(self.agents), *actions.shape[1:])
        if chosen is None:
            groups[self.group_index][:, self._in_group] = by_env
            return
        envs, places = np.nonzero(chosen.reshape(self.num_envs, -1))
        groups[self.group_index][envs, np.array(self.group_columns)[places]] = by_env[envs, places]

    @cached_property
    def zero_based_observations(self) -> ZeroBased:
        """What its agents observe, as SB3 counts it."""
        return ZeroBased(self.group.observation_space)

    @cached_property
    def zero_based_actions(self) -> ZeroBased:
        """What its agents do, as SB3 counts it."""
        return ZeroBased(self.group.action_space)

    @cached_property
    def mine(self) -> BoolArray:
        """(all agents,) bool: True for agents with this policy."""
        return np.isin(np.arange(self.num_agents), self.agent_columns)

    @cached_property
    def _in_group(self) -> Any:
        return _column_index(self.group_columns)

    @cached_property
    def _among_all(self) -> Any:
        return _column_index(self.agent_columns)


def _column_index(columns: Sequence[int]) -> Any:
    """Return an index of these columns: a slice if they are adjacent, so that NumPy makes a view."""
    first, last = columns[0], columns[-1]
    return slice(first, last + 1) if list(columns) == list(range(first, last + 1)) else np.array(columns)


def rows_of_policy(env: MultiAgentVecEnv, policy_id: PolicyID, policy_of: Mapping[AgentID, PolicyID]) -> PolicyRows:
    """Return the places of a policy's agents.

    Raises:
        ConfigError: they do not all have the same spaces.
    """
    agents = tuple(agent for agent in env.agents if policy_of.get(agent) == policy_id)
    groups = [index for index, group in enumerate(env.groups) if set(agents) & set(group.agents)]
    if len(groups) > 1:
        spaces = "; ".join(
            f"{', '.join(a for a in agents if a in env.groups[index].agents)}: "
            f"{env.groups[index].observation_space}, {env.groups[index].action_space}"
            for index in groups
        )
        words = f"the agents of policy {policy_id!r} have different spaces: {spaces}"
        accepted = "a policy for each kind of agents, or policies: per_agent (--policies per_agent)"
        raise ConfigError(f"{words}; accepted: {accepted}", key="policies")
    group = env.groups[groups[0]]
    return PolicyRows(
        policy_id=policy_id,
        num_envs=env.num_envs,
        num_agents=len(env.agents),
        group_index=groups[0],
        group=group,
        agents=agents,
        agent_columns=tuple(env.agents.index(agent) for agent in agents),
        group_columns=tuple(group.agents.index(agent) for agent in agents),
        steps_apart=env.steps_apart,
    )


def zero_actions(env: MultiAgentVecEnv) -> list[Array]:
    """Return zeros of shape `(E, A_group, *action shape)` per group, which policies overwrite with actions."""
    actions: list[Array] = []
    for group in env.groups:
        shape = (env.num_envs, len(group.agents), *(group.action_space.shape or ()))
        actions.append(np.zeros(shape, group.action_space.dtype))
    return actions
