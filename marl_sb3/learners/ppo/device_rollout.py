"""A rollout on the policy's device: one transfer per update instead of six per minibatch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples

from marl_sb3.learners.buffers.rollout import MaskedDictRolloutBuffer, MaskedRolloutBuffer, flat_samples
from marl_sb3.learners.coverage import has_replaced_methods
from marl_sb3.types import Array

_KNOWN_BUFFERS = (RolloutBuffer, DictRolloutBuffer, MaskedRolloutBuffer, MaskedDictRolloutBuffer)


class DeviceRollout:
    """The samples of a rollout buffer as tensors, and minibatches of them in the order that SB3 would draw.

    Args:
        rollout: a full buffer. If its class is unknown or its methods are replaced, its `get` makes the minibatches.

    Attributes:
        values: (samples,) the values of the rollout.
        returns: (samples,) its returns.
    """

    def __init__(self, rollout: Any, device: th.device) -> None:
        self._rollout = rollout
        self._is_known = type(rollout) in _KNOWN_BUFFERS and not has_replaced_methods(rollout)
        self.values: Array = flat_samples(rollout, "values").reshape(-1)
        self.returns: Array = flat_samples(rollout, "returns").reshape(-1)
        if self._is_known:
            self._tensors = self._transfer(device)

    def _transfer(self, device: th.device) -> list[Any]:
        """Observations, actions, values, log-probabilities, advantages and returns, as in `RolloutBufferSamples`."""
        observations = flat_samples(self._rollout, "observations")
        columns = [self.values, *(flat_samples(self._rollout, name) for name in ("log_probs", "advantages"))]
        tensors: list[Any] = [
            {key: th.as_tensor(array, device=device) for key, array in observations.items()}
            if isinstance(observations, dict)
            else th.as_tensor(observations, device=device),
            th.as_tensor(flat_samples(self._rollout, "actions").astype(np.float32, copy=False), device=device),
        ]
        return tensors + [th.as_tensor(column.reshape(-1), device=device) for column in (*columns, self.returns)]

    def minibatches(self, batch_size: int) -> Iterator[Any]:
        """Yield the minibatches of one pass over the samples, in SB3's order."""
        if not self._is_known:
            yield from self._rollout.get(batch_size)
            return
        samples = len(self.returns)
        # SB3's stream of random numbers.
        order = th.as_tensor(np.random.permutation(samples), device=self._tensors[1].device)  # noqa: NPY002
        for start in range(0, samples, batch_size):
            yield self._minibatch(order[start : start + batch_size])

    def _minibatch(self, chosen: th.Tensor) -> RolloutBufferSamples | DictRolloutBufferSamples:
        observations, *columns = self._tensors
        taken = [column[chosen] for column in columns]
        if hasattr(self._rollout, "samples_drawn"):
            self._rollout.samples_drawn += len(chosen)
        if isinstance(observations, dict):
            return DictRolloutBufferSamples({key: tensor[chosen] for key, tensor in observations.items()}, *taken)
        return RolloutBufferSamples(observations[chosen], *taken)
