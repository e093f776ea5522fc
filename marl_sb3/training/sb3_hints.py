"""Messages for users of one SB3 algorithm who look for its attributes and functions on a `MultiAgentAlgorithm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import ConfigError
from marl_sb3.types import PolicyID


def missing_attribute(policies: Mapping[PolicyID, BaseAlgorithm], name: str) -> AttributeError:
    """Make the error for an attribute that `MultiAgentAlgorithm` lacks; it refers to the policies if they have it."""
    of_one = next(iter(policies.values()), None)
    if name.startswith("_") or of_one is None or not hasattr(of_one, name):
        return AttributeError(f"MultiAgentAlgorithm has no attribute {name!r}")
    example = f"{_first(policies)}.{name}"
    return AttributeError(f"MultiAgentAlgorithm has no {name!r}: each policy has its own, {example}")


def require_observations_by_agent(
    policies: Mapping[PolicyID, BaseAlgorithm], observations: Any, of_sb3: Mapping[str, Any]
) -> None:
    """Refuse calls of `predict` with the arguments of SB3's own functions."""
    if of_sb3 or not isinstance(observations, Mapping):
        raise ConfigError(
            "MultiAgentAlgorithm.predict takes {agent: observation} and deterministic; SB3's functions for one "
            f"policy, such as evaluate_policy, take {_first(policies)} and env.as_sb3_vec_env(); "
            "marl_sb3.evaluate_policies evaluates all policies together",
            key="observations",
        )


def _first(policies: Mapping[PolicyID, BaseAlgorithm]) -> str:
    return f"algo.policies[{next(iter(policies))!r}]"
