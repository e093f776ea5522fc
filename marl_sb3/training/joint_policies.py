"""Methods of several policies together that are not training: act, get and set weights, save."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.acting.agent_policy import AgentPolicy
from marl_sb3.acting.bundle import PolicyBundle, copy_policy
from marl_sb3.acting.by_agent import ByAgent, PolicyByAgent
from marl_sb3.errors import ConfigError
from marl_sb3.sb3.files import unpickle_statistics
from marl_sb3.types import AgentID, PolicyID


class JointPolicies(PolicyByAgent):
    """The base class of `MultiAgentAlgorithm`, with the methods on all policies that are not training.

    Attributes:
        policies: policy id -> SB3 algorithm.
    """

    policies: Mapping[PolicyID, BaseAlgorithm]

    @abstractmethod
    def bundle(self) -> PolicyBundle:
        """Return the policies as a bundle, which acts without an env."""

    def agent_policies(self, agents: Iterable[AgentID]) -> dict[AgentID, AgentPolicy]:
        """See `PolicyByAgent.agent_policies`."""
        return self.bundle().agent_policies(agents)

    def predict(
        self, observations: ByAgent, deterministic: bool = False, action_masks: ByAgent | None = None, **of_sb3: Any
    ) -> dict[AgentID, Any]:
        """Return the action of each agent.

        Args:
            observations: by agent; any subset of the agents. A leading batch axis is kept.
            deterministic: the most likely action instead of a sampled one.
            action_masks: by agent; see `predict_with_state`.
            of_sb3: not accepted; the error tells users of SB3's functions for one policy, such as `evaluate_policy`,
                what to use.

        Raises:
            ConfigError: an agent is unknown, or `observations` is no mapping by agent.
        """
        require_observations_by_agent(self.policies, observations, of_sb3)
        return super().predict(observations, deterministic, action_masks)

    def get_parameters(self) -> dict[PolicyID, dict[str, Any]]:
        """Return weights and optimizer state of each policy; see SB3's `get_parameters`."""
        return {policy_id: algorithm.get_parameters() for policy_id, algorithm in self.policies.items()}

    def set_parameters(self, parameters: Mapping[PolicyID, Mapping[str, Any]], exact_match: bool = True) -> None:
        """Set weights and optimizer state of some or all policies; see SB3's `set_parameters`.

        Raises:
            ConfigError: an unknown policy id.
        """
        for policy_id in parameters:
            if policy_id not in self.policies:
                raise ConfigError(f"unknown policy {policy_id!r}; accepted: {', '.join(self.policies)}")
        for policy_id, values in parameters.items():
            self.policies[policy_id].set_parameters(dict(values), exact_match=exact_match)

    def copy_policy(self, source: PolicyID, target: PolicyID) -> None:
        """Give the policy `target` the weights and running statistics of `source`; its optimizers start anew.

        Self-play needs it: a callback copies the policy that learns into one that is not trained, its opponent.

        Raises:
            ConfigError: there is no such policy, or the two have other networks or other processing.
        """
        copy_policy(self.bundle(), source, target)

    def unpickle_vec_normalize(self, policy_id: PolicyID, path: str | Path) -> None:
        """Give a policy the running statistics of a `VecNormalize` of SB3, such as `vecnormalize.pkl`.

        WARNING: this unpickles the file, and a pickle may run any code. Call it only for files whose maker you trust.
        Nothing else in marl_sb3 reads such a file. The policy's settings `normalize_observations` and
        `normalize_rewards` say which statistics it has.

        Raises:
            ConfigError: there is no such policy; it normalises nothing; the file cannot be read, or does not fit.
        """
        processing = self.bundle().processing
        if policy_id not in processing:
            raise ConfigError(f"unknown policy {policy_id!r}; accepted: {', '.join(processing)}", key="policies")
        if not processing[policy_id].statistics:
            words = "accepted: a policy with normalize_observations or normalize_rewards"
            raise ConfigError(f"policy {policy_id!r} normalises nothing; {words}", key="policies")
        unpickle_statistics(processing[policy_id], Path(path))

    def is_finite(self) -> bool:
        """Whether all weights of all policies are finite."""
        return all(
            bool(th.isfinite(parameter).all())
            for algorithm in self.policies.values()
            for parameter in algorithm.policy.parameters()
        )

    def save_policies(self, folder: str | Path) -> dict[PolicyID, Path]:
        """Save each policy as `folder/<policy id>.zip`, which stock SB3's `load` opens; see `ids.file_names`.

        Returns:
            policy id -> file.
        """
        return self.bundle().save_policies(folder)


# --- Messages for users who look for attributes of SB3 or RLlib ------------------------------------------------------

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
