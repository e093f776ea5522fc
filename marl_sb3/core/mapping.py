"""The policies of a run: the policy of each agent, which policies are trained, and which act deterministically."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from marl_sb3.core.config.values import require_ids, shown_id
from marl_sb3.core.state.state import StateReader, is_plain
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.observations import AgentGroup, ZeroBased
from marl_sb3.core.vec_env.seeding import fresh_seed
from marl_sb3.doors import ASSIGNED_RUNNERS, EACH_EPISODE, Assignment
from marl_sb3.errors import CheckpointError, ConfigError, refuse, require_known, shown
from marl_sb3.types import AgentID, Array, BoolArray, Observations, PolicyID, PolicyMappingFn

SHARED = "shared"
PER_AGENT = "per_agent"

_DETERMINISTIC = "evaluation.deterministic"
_NAME_POLICIES = ', such as "policy_1"'


def resolve_policies(policies: str | Mapping[PolicyID, Any], agents: Sequence[AgentID]) -> list[PolicyID]:
    """Return the policy ids for `shared`, `per_agent` or a mapping of policies, whose values do not matter."""
    shorthands = {SHARED: [SHARED], PER_AGENT: list(agents)}
    if isinstance(policies, str) and policies in shorthands:
        return shorthands[policies]
    if not isinstance(policies, Mapping):
        refuse("policies", policies, f"{', '.join(shorthands)} or a mapping of policies")
    if not policies:
        raise ConfigError("policies is empty; at least one policy is needed", key="policies")
    policy_ids = list(policies)
    require_ids("policy", policy_ids, "policies", _NAME_POLICIES)
    return policy_ids


@dataclass(frozen=True)
class PolicyMapping:
    """Which policies may play each agent."""

    # Agent -> ids; the first one plays in evaluations.
    candidates: Mapping[AgentID, Sequence[PolicyID]]
    # Chooses among them when an episode begins; None: no agent has more than one.
    assignment: Assignment | None = None
    # Of the random numbers of the assignment.
    seed: int = 0

    @property
    def policy_of(self) -> dict[AgentID, PolicyID]:
        """Agent -> the policy that plays in evaluations."""
        return {agent: first for agent, (first, *_) in self.candidates.items()}

    def seats_of(self, policy_id: PolicyID) -> dict[AgentID, PolicyID]:
        """Return the agents that a policy may play, each with its id."""
        return {agent: policy_id for agent, policy_ids in self.candidates.items() if policy_id in policy_ids}

    def team_of(self, policy_id: PolicyID) -> tuple[AgentID, ...]:
        """Return the agents whose rewards `team_reward` adds up for a policy; none where policies take turns."""
        seats = tuple(self.seats_of(policy_id))
        if self.varied or len(seats) > 1:
            return () if self.varied else seats
        return tuple(agent for agent, own in self.candidates.items() if len(self.seats_of(own[0])) == 1)

    @property
    def varied(self) -> Mapping[AgentID, Sequence[PolicyID]]:
        """The candidates if some agent has more than one, or others may play it; else nothing."""
        several = any(policy_ids[1:] for policy_ids in self.candidates.values())
        return self.candidates if several or hasattr(self.assignment, "runner") else {}


def policy_mapping(
    policy_ids: Sequence[PolicyID],
    env: MultiAgentVecEnv,
    mapping: Assignment | PolicyMappingFn | Mapping[AgentID, PolicyID] | None,
    seed: int | None = None,
) -> PolicyMapping:
    """Return which policies may play each agent.

    Args:
        mapping: see `policy_of_agents`; or an `Assignment`, or a function of the agent and the episode.
        seed: that of the run; None: one is drawn for an `Assignment`.

    Raises:
        ConfigError: an agent is left out, a policy is unknown or plays nobody, or a checkpoint could not hold a state.
    """
    agents = env.agents
    mapping = ASSIGNED_RUNNERS[EACH_EPISODE].read_mapping(mapping, policy_ids, env.groups)
    if not isinstance(mapping, Assignment):
        return PolicyMapping({a: (own,) for a, own in policy_of_agents(policy_ids, agents, mapping).items()})
    given = mapping.candidates(agents)
    candidates = {agent: tuple(dict.fromkeys(given.get(agent) or ())) for agent in agents}
    _require_policies(policy_ids, agents, candidates)
    if not is_plain(mapping.get_state()):
        words = "does not return plain data: numbers, strings, NumPy arrays, and lists and mappings of these"
        raise ConfigError(f"{type(mapping).__name__}.get_state() {words}", key="policies")
    found = PolicyMapping(candidates, mapping, fresh_seed() if seed is None else seed)
    return found if found.varied else PolicyMapping(candidates)


def policy_of_agents(
    policy_ids: Sequence[PolicyID],
    agents: Sequence[AgentID],
    mapping: PolicyMappingFn | Mapping[AgentID, PolicyID] | None,
) -> dict[AgentID, PolicyID]:
    """Return the policy of each agent.

    Args:
        mapping: function or dictionary from agent to policy. None is accepted if there is only one choice:
            one policy for all, or policies named as the agents.
    """
    if mapping is None:
        if len(policy_ids) > 1 and set(policy_ids) != set(agents):
            words = f"policies {', '.join(policy_ids)} and agents {', '.join(agents)}: a policy_mapping_fn is needed"
            raise ConfigError(words, key="policies")
        chosen: dict[AgentID, Any] = {agent: agent if policy_ids[1:] else policy_ids[0] for agent in agents}
    elif isinstance(mapping, Mapping):
        for agent in mapping:
            if agent not in agents:
                words = f"the policy mapping names agent {_shown_id(agent)}; the env has {', '.join(agents)}"
                accepted = "policies: per_agent (--policies per_agent) fits any agents"
                raise ConfigError(f"{words}; {accepted}", key="policies")
        chosen = dict(zip(agents, map(mapping.get, agents), strict=True))
    elif callable(mapping):
        chosen = dict(zip(agents, map(mapping, agents), strict=True))
    else:
        refuse(
            "policy_mapping_fn",
            mapping,
            "a function of agent id (and episode), a mapping of agent ids to policy ids, or an Assignment",
            "policies",
        )
    _require_policies(policy_ids, agents, {agent: (policy_id,) for agent, policy_id in chosen.items()})
    return chosen


def _require_policies(
    policy_ids: Sequence[PolicyID], agents: Sequence[AgentID], candidates: Mapping[AgentID, Sequence[Any]]
) -> None:
    """Refuse agents without a policy, policies that do not exist, and those that act for no agent."""
    for agent in agents:
        for policy_id in candidates.get(agent) or (None,):
            if policy_id is None:
                raise ConfigError(f"the policy mapping leaves out agent {agent!r}", key="policies")
            words = f"the policy mapping sends agent {agent!r} to unknown policy {_shown_id(policy_id)}"
            require_known(policy_id, policy_ids, words, "policies")
    known = set().union(*candidates.values())
    for policy_id in policy_ids:
        if policy_id not in known:
            raise ConfigError(f"policy {policy_id!r} acts for no agent; agents: {', '.join(agents)}", key="policies")


def read_mapping(state: StateReader, policy_ids: Sequence[PolicyID]) -> PolicyMapping:
    """Read which policies may play each agent from a checkpoint, which does not hold an `Assignment`.

    Raises:
        CheckpointError: it names other policies, or leaves one out.
    """
    saved = state.fields("policy_of")
    candidates: dict[AgentID, Sequence[PolicyID]] = {agent: (saved.string(agent),) for agent in saved.names()}
    if "candidates" in state:
        varied = state.fields("candidates")
        varied.require_names(list(candidates))
        candidates = {agent: (*own, *varied.strings(agent)) for agent, own in candidates.items()}
    try:
        _require_policies(resolve_policies(dict.fromkeys(policy_ids), list(candidates)), list(candidates), candidates)
    except ConfigError as error:
        raise CheckpointError(f"{saved.where}: {error}") from error
    return PolicyMapping(candidates)


def _shown_id(value: object) -> str:
    """Show an id; with its type if it is no string, to tell 1 from '1'."""
    return shown_id(value) if isinstance(value, str) else f"{shown_id(value)} of type {type(value).__name__}"


def policies_that_train(
    policies_to_train: Sequence[PolicyID] | Callable[[PolicyID], bool] | None, policy_ids: Sequence[PolicyID]
) -> set[PolicyID]:
    """Return the ids of the policies that are trained; None: all."""
    if policies_to_train is None:
        return set(policy_ids)
    if callable(policies_to_train):
        return {policy_id for policy_id in policy_ids if policies_to_train(policy_id)}
    if isinstance(policies_to_train, str) or not isinstance(policies_to_train, Collection):
        refuse("policies_to_train", policies_to_train, "a list of policy ids or a function of them")
    for policy_id in policies_to_train:
        words = f"policies_to_train names unknown policy {_shown_id(policy_id)}"
        require_known(policy_id, policy_ids, words, "policies_to_train")
    return set(policies_to_train)


# For all policies, or by policy: True takes the most likely actions, False samples them as the training does. Policies
# that a mapping leaves out take the most likely ones.
Deterministic: TypeAlias = bool | Mapping[PolicyID, bool]


def by_policy(deterministic: Deterministic, policy_ids: Iterable[PolicyID]) -> dict[PolicyID, bool]:
    """Return the choice for each policy.

    Raises:
        ConfigError: the mapping has another policy, or a value is neither true nor false.
    """
    known = list(policy_ids)
    if isinstance(deterministic, bool):
        return dict.fromkeys(known, deterministic)
    if not isinstance(deterministic, Mapping):
        raise _refused(f"is {shown(deterministic)}; accepted: true, false, or {{POLICY: true or false}}")
    for policy_id, chosen in deterministic.items():
        require_known(policy_id, known, f"{_DETERMINISTIC} has policy {shown(policy_id)}", _DETERMINISTIC)
        if not isinstance(chosen, bool):
            raise _refused(f"has {shown(chosen)} for policy {policy_id!r}; accepted: true or false")
    return {policy_id: deterministic.get(policy_id, True) for policy_id in known}


def _refused(words: str) -> ConfigError:
    return ConfigError(f"{_DETERMINISTIC} {words}", key=_DETERMINISTIC)


def read_deterministic(state: StateReader, name: str, policy_ids: Iterable[PolicyID]) -> Deterministic:
    """Read a choice from a checkpoint.

    Raises:
        CheckpointError: it is not a choice for these policies.
    """
    if not isinstance(state.value(name), Mapping):
        return state.boolean(name)
    of_policies = state.fields(name)
    known, chosen = set(policy_ids), {}
    for policy_id in of_policies.names():
        if policy_id not in known:
            raise CheckpointError(f"{of_policies.where} has an unknown policy {policy_id!r}")
        chosen[policy_id] = of_policies.boolean(policy_id)
    return chosen


# --- Rows ------------------------------------------------------------------------------------------------------------


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
    team_columns: tuple[int, ...] = ()  # of the agents of its team, on the axis of all agents; see `team_of`

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


def rows_of_policy(
    env: MultiAgentVecEnv, policy_id: PolicyID, policy_of: Mapping[AgentID, PolicyID], team: Sequence[AgentID] = ()
) -> PolicyRows:
    """Return the places of a policy's agents, and of those of its team.

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
        agent_columns=tuple(map(env.agents.index, agents)),
        group_columns=tuple(map(group.agents.index, agents)),
        steps_apart=env.steps_apart,
        team_columns=tuple(map(env.agents.index, team)),
    )


def zero_actions(env: MultiAgentVecEnv) -> list[Array]:
    """Return zeros of shape `(E, A_group, *action shape)` per group, which policies overwrite with actions."""
    actions: list[Array] = []
    for group in env.groups:
        shape = (env.num_envs, len(group.agents), *(group.action_space.shape or ()))
        actions.append(np.zeros(shape, group.action_space.dtype))
    return actions
