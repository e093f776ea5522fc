"""Which agents a policy acts for, and where they stand in the arrays of a `MultiAgentVecEnv`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marl_sb3.errors import ConfigError
from marl_sb3.ids import require_ids, shown_id
from marl_sb3.types import AgentID, Array, BoolArray, Observations, PolicyID, PolicyMappingFn
from marl_sb3.vec_env.base import MultiAgentVecEnv
from marl_sb3.vec_env.groups import AgentGroup
from marl_sb3.vec_env.observations import map_arrays, to_rows

SHARED = "shared"
PER_AGENT = "per_agent"

_NAME_POLICIES = ', such as "policy_1"'


@dataclass(frozen=True)
class PolicyRows:
    """The rows of one policy: row `e * len(agents) + i` is its i-th agent in env e.

    Attributes:
        policy_id: whose rows.
        num_envs: E.
        num_agents: all agents of an env.
        group_index: the group that its agents belong to; they all have the same spaces.
        group: that group.
        agents: its agents, in the env's order.
        agent_columns: where they stand on the axis of all agents.
        group_columns: where they stand on the axis of the group.
    """

    policy_id: PolicyID
    num_envs: int
    num_agents: int
    group_index: int
    group: AgentGroup
    agents: tuple[AgentID, ...]
    agent_columns: tuple[int, ...]
    group_columns: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """E times the number of agents."""
        return self.num_envs * len(self.agents)

    def observations(self, groups: Sequence[Observations]) -> Observations:
        """(rows, ...) from the observations of all groups."""
        columns = self._in_group
        return to_rows(map_arrays(lambda array: array[:, columns], groups[self.group_index]))

    def of_agents(self, per_agent: Array) -> Array:
        """(rows,) from an array over (E, all agents)."""
        return per_agent[:, self._among_all].reshape(-1)

    def put_actions(self, actions: Array, groups: Sequence[Array]) -> None:
        """Write the rows' actions, (rows, ...), into the arrays of all groups."""
        by_env = actions.reshape(self.num_envs, len(self.agents), *actions.shape[1:])
        groups[self.group_index][:, self._in_group] = by_env

    @cached_property
    def mine(self) -> BoolArray:
        """(all agents,) bool: those of this policy."""
        return np.isin(np.arange(self.num_agents), self.agent_columns)

    @cached_property
    def _in_group(self) -> Any:
        return _column_index(self.group_columns)

    @cached_property
    def _among_all(self) -> Any:
        return _column_index(self.agent_columns)


def _column_index(columns: Sequence[int]) -> Any:
    """An index of these columns: a slice where they adjoin, so that NumPy makes a view."""
    first, last = columns[0], columns[-1]
    return slice(first, last + 1) if list(columns) == list(range(first, last + 1)) else np.array(columns)


def resolve_policies(policies: str | Mapping[PolicyID, Any], agents: Sequence[AgentID]) -> list[PolicyID]:
    """The policy ids that `shared`, `per_agent` or a mapping of policies stand for.

    Raises:
        ConfigError: anything else, or no policy at all.
    """
    shorthands = {SHARED: [SHARED], PER_AGENT: list(agents)}
    if isinstance(policies, str) and policies in shorthands:
        return shorthands[policies]
    if not isinstance(policies, Mapping):
        raise ConfigError(
            f"policies is {policies!r}; accepted: {', '.join(shorthands)} or a mapping of policies", key="policies"
        )
    if not policies:
        raise ConfigError("policies is empty; at least one policy is needed", key="policies")
    require_ids("policy", policies, "policies", _NAME_POLICIES)
    return list(policies)


def policy_of_agents(
    policy_ids: Sequence[PolicyID],
    agents: Sequence[AgentID],
    mapping: PolicyMappingFn | Mapping[AgentID, PolicyID] | None,
) -> dict[AgentID, PolicyID]:
    """The policy of each agent.

    Args:
        policy_ids: the policies there are.
        agents: the agents there are.
        mapping: function or dictionary from agent to policy. None does where it is clear: one policy for all, or
            policies named as the agents.

    Raises:
        ConfigError: an agent without a policy, an unknown policy, or a policy without agents.
    """
    if mapping is None:
        mapping = _evident_mapping(policy_ids, agents)
    if isinstance(mapping, Mapping):
        _require_agents_of_env(mapping, agents)
        mapping = mapping.get  # type: ignore[assignment]
    elif callable(mapping):
        _require_takes_agent(mapping)
    else:
        words = "a function of the agent id, or a mapping of agent ids to policy ids"
        raise ConfigError(f"policy_mapping_fn is {mapping!r}; accepted: {words}", key="policies")
    chosen = {agent: mapping(agent) for agent in agents}  # type: ignore[operator]
    for agent, policy_id in chosen.items():
        _require_policy_of_agent(policy_id, agent, policy_ids)
    idle = [policy_id for policy_id in policy_ids if policy_id not in chosen.values()]
    if idle:
        raise ConfigError(f"policy {idle[0]!r} acts for no agent; agents: {', '.join(agents)}", key="policies")
    return chosen


def _require_takes_agent(mapping: PolicyMappingFn) -> None:
    """RLlib calls such functions with an episode, too."""
    try:
        signature = inspect.signature(mapping)
    except (TypeError, ValueError):
        return  # some builtins have none; the call itself will tell
    try:
        signature.bind("agent")
    except TypeError as error:
        words = f"policy_mapping_fn takes {signature}; accepted: a function of one argument, the agent id"
        raise ConfigError(words, key="policies") from error


def _require_agents_of_env(mapping: Mapping[AgentID, PolicyID], agents: Sequence[AgentID]) -> None:
    for agent in mapping:
        if agent not in agents:
            raise ConfigError(
                f"the policy mapping names agent {shown_id(agent)}{_type_note(agent)}; the env has {', '.join(agents)}",
                key="policies",
            )


def _require_policy_of_agent(policy_id: object, agent: AgentID, policy_ids: Sequence[PolicyID]) -> None:
    if policy_id is None:
        raise ConfigError(f"the policy mapping leaves out agent {agent!r}", key="policies")
    if policy_id not in policy_ids:
        raise ConfigError(
            f"the policy mapping sends agent {agent!r} to unknown policy {shown_id(policy_id)}{_type_note(policy_id)}; "
            f"accepted: {', '.join(policy_ids)}",
            key="policies",
        )


def _type_note(value: object) -> str:
    """Why 1 is not '1'."""
    return "" if isinstance(value, str) else f" of type {type(value).__name__}"


def _evident_mapping(policy_ids: Sequence[PolicyID], agents: Sequence[AgentID]) -> PolicyMappingFn:
    if len(policy_ids) == 1:
        return lambda _: policy_ids[0]
    if set(policy_ids) == set(agents):
        return lambda agent: agent
    raise ConfigError(
        f"policies {', '.join(policy_ids)} and agents {', '.join(agents)}: a policy_mapping_fn is needed",
        key="policies",
    )


def policies_that_train(
    policies_to_train: Sequence[PolicyID] | Callable[[PolicyID], bool] | None, policy_ids: Sequence[PolicyID]
) -> set[PolicyID]:
    """The ids of the policies that are trained; None stands for all.

    Raises:
        ConfigError: an unknown id.
    """
    if policies_to_train is None:
        return set(policy_ids)
    if callable(policies_to_train):
        return {policy_id for policy_id in policy_ids if policies_to_train(policy_id)}
    if isinstance(policies_to_train, str) or not isinstance(policies_to_train, Collection):
        raise ConfigError(
            f"policies_to_train is {policies_to_train!r}; accepted: a list of policy ids or a function of them",
            key="policies_to_train",
        )
    strangers = [policy_id for policy_id in policies_to_train if policy_id not in policy_ids]
    if strangers:
        raise ConfigError(
            f"policies_to_train names unknown policy {shown_id(strangers[0])}{_type_note(strangers[0])}; "
            f"accepted: {', '.join(policy_ids)}",
            key="policies_to_train",
        )
    return set(policies_to_train)


def rows_of_policy(env: MultiAgentVecEnv, policy_id: PolicyID, policy_of: Mapping[AgentID, PolicyID]) -> PolicyRows:
    """Where the agents of a policy stand.

    Raises:
        ConfigError: they do not all have the same spaces.
    """
    agents = tuple(agent for agent in env.agents if policy_of[agent] == policy_id)
    groups = [index for index, group in enumerate(env.groups) if set(agents) & set(group.agents)]
    if len(groups) > 1:
        spaces = "; ".join(
            f"{', '.join(a for a in agents if a in env.groups[index].agents)}: "
            f"{env.groups[index].observation_space}, {env.groups[index].action_space}"
            for index in groups
        )
        raise ConfigError(f"the agents of policy {policy_id!r} have different spaces: {spaces}", key="policies")
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
    )


def zero_actions(env: MultiAgentVecEnv) -> list[Array]:
    """Per group, zeros of shape `(E, A_group, *action shape)`, for policies to put their actions in."""
    return [
        np.zeros((env.num_envs, len(group.agents), *(group.action_space.shape or ())), group.action_space.dtype)
        for group in env.groups
    ]
