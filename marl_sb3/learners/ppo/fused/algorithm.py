"""What PPO, A2C, MaskablePPO and TRPO of marl_sb3 have in common: rollouts and updates by the fused kernels."""

from __future__ import annotations

import logging
from typing import Any

import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from marl_sb3.errors import NumericError
from marl_sb3.learners.coverage import Reliance
from marl_sb3.learners.ppo.fused.coverage import coverage
from marl_sb3.learners.ppo.fused.policy import FusedPolicy
from marl_sb3.learners.ppo.fused.rollout import collect_fused
from marl_sb3.learners.ppo.fused.update import FusedUpdate, TorchUpdate, UpdatePlan
from marl_sb3.learners.threads import blas_threads
from marl_sb3.learners.update_path import TwoPaths
from marl_sb3.sb3.private import num_updates, set_num_updates

_log = logging.getLogger(__name__)


class FusedActing(TwoPaths, OnPolicyAlgorithm):
    """A base class, in front of SB3's class of the algorithm: the kernels act where they cover the policy."""

    def coverage(self) -> Reliance | str:
        """See `TwoPaths.coverage`."""
        return coverage(self)

    def _in_kernels_form(self) -> FusedPolicy:
        return FusedPolicy(self.policy)

    def fused_policy(self) -> FusedPolicy | None:
        """The policy in the kernels' layout, on the fused path.

        Raises:
            ConfigError: see `TwoPaths.takes_fused_path`.
        """
        fused: FusedPolicy | None = self._kernels()
        return fused


class FusedRollouts(FusedActing):
    """`FusedActing` in the rollouts of `learn` too."""

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
    ) -> bool:
        """See `OnPolicyAlgorithm.collect_rollouts`."""
        if not self.takes_fused_path():
            return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        return collect_fused(self, env, callback, rollout_buffer, n_rollout_steps)


class FusedUpdates(FusedActing):
    """A base class, in front of SB3's class of the algorithm: its updates run in the kernels where they cover them.

    Attributes:
        num_grad_updates: optimizer steps taken since the object was made.
    """

    num_grad_updates: int = 0

    def update_plan(self) -> UpdatePlan:
        """Return the minibatches and the loss of the next update."""
        raise NotImplementedError

    def record_update(self, update: FusedUpdate) -> None:
        """Record what the algorithm's `train` records in SB3's logger, under the same names."""
        raise NotImplementedError

    def train(self) -> None:
        """Update the policy from the rollout buffer.

        Raises:
            NumericError: a loss or gradient is not finite (fused path only); the weights stay as before that minibatch.
        """
        update = self.prepare_update()
        with blas_threads(1):
            update.run()
        self.finish_update(update)
        if isinstance(update, FusedUpdate) and not update.is_finite:
            raise NumericError("a loss or a gradient is not finite; the update stopped at that minibatch")

    def prepare_update(self) -> FusedUpdate | TorchUpdate:
        """Do the part of an update that draws random numbers, in SB3's order, or that cannot run in parallel.

        Fused updates of several policies may then `run` at the same time; `finish_update` is called for one at a time.
        """
        fused = self.fused_policy()
        if fused is None:
            return TorchUpdate(self._train_torch)
        if not fused.has_even_steps():
            _log.info("%s: torch update: the optimizer has taken more steps with some parameters", self.known_as)
            return TorchUpdate(self._train_torch)
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        return FusedUpdate(self, fused, self.update_plan())

    def finish_update(self, update: FusedUpdate | TorchUpdate) -> None:
        """Write the results of a fused update into SB3's objects."""
        if isinstance(update, FusedUpdate):
            update.write_back()
            set_num_updates(self, num_updates(self) + update.n_epochs)
            self.num_grad_updates += update.num_grad_updates
            self.record_update(update)

    def _train_torch(self) -> None:
        """Update by SB3's own `train`."""
        optimizer = self.policy.optimizer
        if not isinstance(optimizer, th.optim.Optimizer):  # a wrapper without hooks
            super().train()
            return
        counted = optimizer.register_step_post_hook(self._count_grad_update)
        try:
            super().train()
        finally:
            counted.remove()

    def _count_grad_update(self, *_: Any) -> None:
        self.num_grad_updates += 1
