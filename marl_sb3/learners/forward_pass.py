"""The forward pass of a policy in a rollout: by its torch modules, or by the fused kernels."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from marl_sb3.types import Array, BoolArray, FloatArray, Observations
from marl_sb3.vec_env.observations import map_arrays


class ForwardPass(Protocol):
    """Computes actions and values in a rollout. Observations are batches, (rows, ...)."""

    def act(self, observations: Any, action_masks: BoolArray | None = None) -> tuple[Array, FloatArray, FloatArray]:
        """Sampled actions (rows, *action shape), values (rows,) and log-probabilities (rows,).

        Args:
            observations: (rows, ...).
            action_masks: (rows, n) True where an action is allowed; only for policies that take masks.
        """

    def values(self, observations: Any) -> FloatArray:
        """(rows,) values."""

    def final_values(self, observations: Any) -> FloatArray:
        """(rows,) values of the observations that agents were truncated on."""


class TorchForwardPass:
    """By the torch modules, with the operations of SB3's `collect_rollouts`."""

    def __init__(self, algorithm: OnPolicyAlgorithm) -> None:
        self._algorithm = algorithm

    def act(
        self, observations: Observations, action_masks: BoolArray | None = None
    ) -> tuple[Array, FloatArray, FloatArray]:
        """See `ForwardPass.act`."""
        arguments = {} if action_masks is None else {"action_masks": action_masks}
        with th.no_grad():
            actions, values, log_probs = self._algorithm.policy(self._tensor(observations), **arguments)
        return actions.cpu().numpy(), values.cpu().numpy().reshape(-1), log_probs.cpu().numpy()

    def values(self, observations: Observations) -> FloatArray:
        """See `ForwardPass.values`."""
        with th.no_grad():
            values = self._algorithm.policy.predict_values(self._tensor(observations))
        result: FloatArray = values.cpu().numpy().reshape(-1)
        return result

    def final_values(self, observations: Observations) -> FloatArray:
        """See `ForwardPass.final_values`; computed one by one as in SB3: the last bits depend on the batch size."""
        rows = len(next(iter(observations.values())) if isinstance(observations, dict) else observations)
        values = [self._final_value(observations, row) for row in range(rows)]
        return np.concatenate(values)

    def _final_value(self, observations: Observations, row: int) -> FloatArray:
        observation = map_arrays(lambda array: array[row], observations)
        with th.no_grad():
            value = self._algorithm.policy.predict_values(self._algorithm.policy.obs_to_tensor(observation)[0])
        result: FloatArray = value.cpu().numpy().reshape(-1)
        return result

    def _tensor(self, observations: Observations) -> th.Tensor | dict[str, th.Tensor]:
        return obs_as_tensor(observations, self._algorithm.device)


def forward_pass(algorithm: OnPolicyAlgorithm) -> ForwardPass:
    """Return the fastest forward pass that covers the policy, with its present parameters."""
    fused: Any = algorithm.fused_policy() if hasattr(algorithm, "fused_policy") else None
    if fused is None:
        return TorchForwardPass(algorithm)
    fused.read_parameters()
    return fused  # type: ignore[no-any-return]
