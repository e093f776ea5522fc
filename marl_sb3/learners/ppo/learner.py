"""Train a policy by `marl_sb3.PPO`, on either of its update paths, or by `stable_baselines3.PPO`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from marl_sb3.learners.interface import UpdateJob
from marl_sb3.learners.on_policy import OnPolicyLearner, TrainJob
from marl_sb3.learners.ppo.fused.update import FusedUpdate
from marl_sb3.learners.ppo.ppo import PPO
from marl_sb3.metrics import Result


class PPOLearner(OnPolicyLearner):
    """See `OnPolicyLearner`."""

    recorded_as: ClassVar[Mapping[str, str]] = {
        **OnPolicyLearner.recorded_as,
        "policy_loss": "train/policy_gradient_loss",
        "mean_kl_loss": "train/approx_kl",
        "clip_fraction": "train/clip_fraction",
    }
    metric_names: ClassVar[Sequence[str]] = (
        "policy_loss",
        "vf_loss",
        "vf_loss_unclipped",
        "total_loss",
        "entropy",
        "mean_kl_loss",
        "vf_explained_var",
        "clip_fraction",
        "gradients_global_norm",
        "curr_lr",
        "num_grad_updates_lifetime",
        "num_trainable_parameters",
        "num_module_steps_trained",
    )

    def begin_update(self, progress_remaining: float) -> UpdateJob:
        """See `Learner.begin_update`."""
        job = super().begin_update(progress_remaining)
        algorithm = self.algorithm
        if not isinstance(algorithm, PPO) or type(algorithm).train is not PPO.train:
            return job
        if not self.collector.buffer.num_transitions:
            return job
        update = algorithm.prepare_update()
        return FusedJob(self, update) if isinstance(update, FusedUpdate) else TrainJob(self, update.run)

    @property
    def least_transitions(self) -> int:
        """See `OnPolicyLearner.least_transitions`; PPO leaves the advantage of a minibatch of one as it is."""
        return 1

    def _count_grad_updates(self) -> None:
        if not isinstance(self.algorithm, PPO):
            super()._count_grad_updates()

    @property
    def num_grad_updates(self) -> int:
        """Optimizer steps taken."""
        return self.algorithm.num_grad_updates if isinstance(self.algorithm, PPO) else self._grad_updates

    @num_grad_updates.setter
    def num_grad_updates(self, count: int) -> None:
        if isinstance(self.algorithm, PPO):
            self.algorithm.num_grad_updates = count
        self._grad_updates = count

    def _more_metrics(self, recorded: Mapping[str, Any]) -> Result:
        """See `OnPolicyLearner._more_metrics`: the metrics that only `marl_sb3.PPO` has."""
        stats = getattr(self.algorithm, "update_stats", {}) if recorded else {}
        clipped = getattr(self.algorithm, "clip_range_vf", None) is not None
        return {
            "vf_loss_unclipped": stats.get("vf_loss_unclipped", None if clipped else recorded.get("train/value_loss")),
            "gradients_global_norm": stats.get("gradients_global_norm"),
        }


class FusedJob(TrainJob):
    """An update by the kernels, which release the GIL."""

    parallel = True

    def __init__(self, learner: PPOLearner, update: FusedUpdate) -> None:
        super().__init__(learner, update.run)
        self._update = update

    def finish(self) -> Result:
        """See `UpdateJob.finish`."""
        self._learner.algorithm.finish_update(self._update)  # type: ignore[attr-defined]
        self._learner.collector.buffer.samples_drawn += self._update.samples_drawn
        return super().finish()
