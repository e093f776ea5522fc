"""The policies of a run: the policy of each agent, which policies are trained, and which act deterministically."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from marl_sb3.core.config import require_ids, shown, shown_id
from marl_sb3.core.state import StateReader
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.types import AgentID, PolicyID, PolicyMappingFn

SHARED = "shared"
PER_AGENT = "per_agent"

_NAME_POLICIES = ', such as "policy_1"'


def resolve_policies(policies: str | Mapping[PolicyID, Any], agents: Sequence[AgentID]) -> list[PolicyID]:
    """Return the policy ids for `shared`, `per_agent` or a mapping of policies, whose values do not matter."""
    shorthands = {SHARED: [SHARED], PER_AGENT: list(agents)}
    if isinstance(policies, str) and policies in shorthands:
        return shorthands[policies]
    if not isinstance(policies, Mapping):
        raise ConfigError(
            f"policies is {shown(policies)}; accepted: {', '.join(shorthands)} or a mapping of policies", key="policies"
        )
    if not policies:
        raise ConfigError("policies is empty; at least one policy is needed", key="policies")
    policy_ids = list(policies)
    require_ids("policy", policy_ids, "policies", _NAME_POLICIES)
    return policy_ids


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
        chosen: dict[AgentID, Any] = _evident_policies(policy_ids, agents)
    elif isinstance(mapping, Mapping):
        for agent in mapping:
            if agent not in agents:
                words = f"the policy mapping names agent {_shown_id(agent)}; the env has {', '.join(agents)}"
                accepted = "policies: per_agent (--policies per_agent) fits any agents"
                raise ConfigError(f"{words}; {accepted}", key="policies")
        chosen = {agent: mapping.get(agent) for agent in agents}
    elif callable(mapping):
        _require_takes_agent(mapping)
        chosen = {agent: mapping(agent) for agent in agents}
    else:
        words = "a function of the agent id, or a mapping of agent ids to policy ids"
        raise ConfigError(f"policy_mapping_fn is {mapping!r}; accepted: {words}", key="policies")
    for agent, policy_id in chosen.items():
        if policy_id is None:
            raise ConfigError(f"the policy mapping leaves out agent {agent!r}", key="policies")
        if policy_id not in policy_ids:
            words = f"the policy mapping sends agent {agent!r} to unknown policy {_shown_id(policy_id)}"
            raise ConfigError(f"{words}; accepted: {', '.join(policy_ids)}", key="policies")
    idle = [policy_id for policy_id in policy_ids if policy_id not in chosen.values()]
    if idle:
        raise ConfigError(f"policy {idle[0]!r} acts for no agent; agents: {', '.join(agents)}", key="policies")
    return chosen


def _require_takes_agent(mapping: PolicyMappingFn) -> None:
    """Refuse functions with more than one argument, such as RLlib's, which also take an episode."""
    try:
        signature = inspect.signature(mapping)
    except (TypeError, ValueError):
        return  # some builtins have no signature; if they do not accept an agent, the call fails
    try:
        signature.bind("agent")
    except TypeError as error:
        words = f"policy_mapping_fn takes {signature}; accepted: a function of one argument, the agent id"
        raise ConfigError(words, key="policies") from error


def _shown_id(value: object) -> str:
    """Show an id; with its type if it is no string, to tell 1 from '1'."""
    return shown_id(value) if isinstance(value, str) else f"{shown_id(value)} of type {type(value).__name__}"


def _evident_policies(policy_ids: Sequence[PolicyID], agents: Sequence[AgentID]) -> dict[AgentID, PolicyID]:
    if len(policy_ids) == 1:
        return dict.fromkeys(agents, policy_ids[0])
    if set(policy_ids) == set(agents):
        return {agent: agent for agent in agents}
    words = f"policies {', '.join(policy_ids)} and agents {', '.join(agents)}: a policy_mapping_fn is needed"
    raise ConfigError(words, key="policies")


def policies_that_train(
    policies_to_train: Sequence[PolicyID] | Callable[[PolicyID], bool] | None, policy_ids: Sequence[PolicyID]
) -> set[PolicyID]:
    """Return the ids of the policies that are trained; None: all."""
    if policies_to_train is None:
        return set(policy_ids)
    if callable(policies_to_train):
        return {policy_id for policy_id in policy_ids if policies_to_train(policy_id)}
    if isinstance(policies_to_train, str) or not isinstance(policies_to_train, Collection):
        raise ConfigError(
            f"policies_to_train is {policies_to_train!r}; accepted: a list of policy ids or a function of them",
            key="policies_to_train",
        )
    unknown = [policy_id for policy_id in policies_to_train if policy_id not in policy_ids]
    if unknown:
        raise ConfigError(
            f"policies_to_train names unknown policy {_shown_id(unknown[0])}; accepted: {', '.join(policy_ids)}",
            key="policies_to_train",
        )
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
        if policy_id not in known:
            raise _refused(f"has policy {shown(policy_id)}; accepted: {', '.join(known)}")
        if not isinstance(chosen, bool):
            raise _refused(f"has {shown(chosen)} for policy {policy_id!r}; accepted: true or false")
    return {policy_id: deterministic.get(policy_id, True) for policy_id in known}


def _refused(words: str) -> ConfigError:
    return ConfigError(f"evaluation.deterministic {words}", key="evaluation.deterministic")


def read_deterministic(state: StateReader, name: str, policy_ids: Iterable[PolicyID]) -> Deterministic:
    """Read a choice from a checkpoint.

    Raises:
        CheckpointError: it is not a choice for these policies.
    """
    if not isinstance(state.value(name), Mapping):
        return state.boolean(name)
    of_policies = state.fields(name)
    chosen = {policy_id: of_policies.boolean(policy_id) for policy_id in of_policies.names()}
    unknown = [policy_id for policy_id in chosen if policy_id not in set(policy_ids)]
    if unknown:
        raise CheckpointError(f"{of_policies.where} has an unknown policy {unknown[0]!r}")
    return chosen
