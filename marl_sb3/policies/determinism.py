"""Which policies take their most likely actions in an evaluation, and which ones sample them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from marl_sb3.config.values import shown
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.storage.state import StateReader
from marl_sb3.types import PolicyID

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
