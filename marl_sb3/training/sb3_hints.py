"""Messages for users of SB3 or RLlib who look for its attributes and functions on a `MultiAgentAlgorithm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import ConfigError
from marl_sb3.types import PolicyID

# Methods of RLlib's `Algorithm` -> what does the same here.
_OF_RLLIB: Mapping[str, str] = {
    "train": "train_iteration() trains one iteration, learn(total_timesteps) a whole training",
    "get_policy": "policies[POLICY_ID] is the SB3 algorithm of a policy",
    "get_module": "policies[POLICY_ID].policy is the network of a policy",
    "compute_single_action": "predict({agent: observation}) returns the action of each agent",
    "compute_actions": "predict({agent: observation}) returns the action of each agent",
    "evaluate": "marl_sb3.evaluate_policies(algo, env, n_episodes) evaluates all policies together",
    "save_to_path": "save(path) writes a checkpoint",
    "restore_from_path": "MultiAgentAlgorithm.load(path, env) loads a checkpoint",
    "from_checkpoint": "MultiAgentAlgorithm.load(path, env) loads a checkpoint",
    "stop": "env.close() closes the envs",
}


def missing_attribute(policies: Mapping[PolicyID, BaseAlgorithm], name: str) -> AttributeError:
    """Make the error for an attribute that `MultiAgentAlgorithm` lacks; it refers to the policies if they have it."""
    if name in _OF_RLLIB:
        return AttributeError(f"MultiAgentAlgorithm has no {name!r}: {_OF_RLLIB[name]}")
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
