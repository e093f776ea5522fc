"""The learners of PPO and of its variants in sb3-contrib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from marl_sb3.learners.fused_learner import FusedLearner
from marl_sb3.learners.learner import Learner
from marl_sb3.metrics import Result


class PPOLearner(FusedLearner):
    """See `FusedLearner`."""

    recorded_as: ClassVar[Mapping[str, str]] = {
        **FusedLearner.recorded_as,
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
        *Learner.metric_names,
    )

    @property
    def least_transitions(self) -> int:
        """See `OnPolicyLearner.least_transitions`; PPO leaves the advantage of a minibatch of one as it is."""
        return 1

    def _more_metrics(self, recorded: Mapping[str, Any]) -> Result:
        """See `OnPolicyLearner._more_metrics`: the metrics that only `marl_sb3.PPO` has."""
        stats = getattr(self.algorithm, "update_stats", {}) if recorded else {}
        clipped = getattr(self.algorithm, "clip_range_vf", None) is not None
        return {
            "vf_loss_unclipped": stats.get("vf_loss_unclipped", None if clipped else recorded.get("train/value_loss")),
            "gradients_global_norm": stats.get("gradients_global_norm"),
        }


class ContribPPOLearner(FusedLearner):
    """Trains by sb3-contrib's variants of PPO: their own `train()` records what PPO's does, but for two metrics."""

    recorded_as: ClassVar[Mapping[str, str]] = PPOLearner.recorded_as
    metric_names: ClassVar[Sequence[str]] = tuple(
        name for name in PPOLearner.metric_names if name not in ("vf_loss_unclipped", "gradients_global_norm")
    )

    @property
    def least_minibatch(self) -> int:
        """See `OnPolicyLearner.least_minibatch`: they normalise the advantages of each minibatch."""
        return self.least_transitions
