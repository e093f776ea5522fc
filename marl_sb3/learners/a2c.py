"""A2C: `stable_baselines3.A2C` with the same results, faster, and its learner."""

from __future__ import annotations

from typing import ClassVar

import stable_baselines3

from marl_sb3.learners.fused_learner import FusedLearner
from marl_sb3.learners.ppo.fused.algorithm import FusedRollouts, FusedUpdates
from marl_sb3.learners.ppo.fused.update import FusedUpdate, UpdatePlan, record_std
from marl_sb3.learners.sb3.private import num_updates


class A2C(FusedUpdates, FusedRollouts, stable_baselines3.A2C):
    """A drop-in for `stable_baselines3.A2C` (Mnih et al. 2016): same arguments, same logger keys, same files.

    The *fused* path runs the update of a plain MLP in PPO's compiled kernels, see `TwoPaths`.
    """

    def update_plan(self) -> UpdatePlan:
        """See `FusedUpdates.update_plan`: one gradient step on the whole rollout."""
        return UpdatePlan(n_epochs=1, batch_size=None, clip_range=None)

    def record_update(self, update: FusedUpdate) -> None:
        """See `FusedUpdates.record_update`."""
        means = update.means()
        self.logger.record("train/n_updates", num_updates(self), exclude="tensorboard")
        self.logger.record("train/explained_variance", means["explained_variance"])
        for name in ("entropy_loss", "policy_loss", "value_loss"):
            self.logger.record(f"train/{name}", means[name])
        record_std(self)


class A2CLearner(FusedLearner):
    """Trains by A2C. Its rollouts are short: as in SB3, metrics are reported once per hundred rollouts."""

    rollouts_per_report: ClassVar[int] = 100
    takes_common_steps: ClassVar[bool] = False
