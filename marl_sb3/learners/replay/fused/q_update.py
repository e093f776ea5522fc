"""Updates of DQN and QR-DQN by the kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.policies import BaseModel
from torch import nn

from marl_sb3.learners.coverage import ACTIVATIONS
from marl_sb3.learners.replay.fused.inputs import batch_of, features, kernel_module
from marl_sb3.learners.tables import Tables, linears
from marl_sb3.types import Array


class QUpdate:
    """Gradient steps of a net of Q values or of their quantiles, see `FusedReplayUpdate`.

    Args:
        algorithm: a DQN or QRDQN that the kernels cover.
        network: its network; `net` is the MLP in it, `target` that of the target network.
        quantiles: of QR-DQN; 0 for DQN.
    """

    def __init__(self, algorithm: Any, network: BaseModel, net: nn.Module, target: nn.Module, quantiles: int) -> None:
        from marl_sb3.kernels.layers import LINEAR
        from marl_sb3.kernels.mlp import Net

        self._kernel = kernel_module("q")
        self._algorithm = algorithm
        self._network = network
        self._quantiles = quantiles
        self._tables = Tables()
        hidden = ACTIVATIONS.index(algorithm.policy.activation_fn)
        self._online, self._target = (
            Net(self._tables.of_layers(linears(each)), hidden, LINEAR) for each in (net, target)
        )

    @property
    def optimizers(self) -> list[th.optim.Optimizer]:
        """See `FusedReplayUpdate.optimizers`."""
        return [self._algorithm.policy.optimizer]

    def begin(self) -> None:
        """See `FusedReplayUpdate.begin`."""
        self._adam = self._tables.of_adam(self.optimizers[0])
        limit = self._algorithm.max_grad_norm
        self._max_grad_norm = math.inf if limit is None else float(limit)
        self._losses: list[float] = []

    def step(self, samples: Any, gradient_step: int) -> None:
        """See `FusedReplayUpdate.step`."""
        batch = batch_of(samples, self._network, self._algorithm.gamma)
        loss, _ = self._kernel.update(
            self._online, self._target, self._adam, batch, self._quantiles, self._max_grad_norm
        )
        self._losses.append(loss)

    def recorded(self) -> dict[str, float]:
        """See `FusedReplayUpdate.recorded`."""
        return {"train/loss": float(np.mean(self._losses))}

    def explore(self, observations: Any) -> Array:
        """See `FusedReplayUpdate.explore`: epsilon-greedy."""
        algorithm = self._algorithm
        if np.random.rand() < algorithm.exploration_rate:  # noqa: NPY002 - SB3's stream of random numbers
            return np.array([algorithm.action_space.sample() for _ in range(len(observations))])
        found: Array = self._kernel.greedy_actions(
            self._online, features(self._network, observations), max(self._quantiles, 1)
        )
        return found
