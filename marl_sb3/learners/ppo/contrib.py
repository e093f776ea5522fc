"""What sb3-contrib's variants of PPO have in common: their own `train()` records what PPO's does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from marl_sb3.learners.fused_learner import FusedLearner
from marl_sb3.learners.ppo.learner import PPOLearner


class ContribPPOLearner(FusedLearner):
    """See `FusedLearner`."""

    recorded_as: ClassVar[Mapping[str, str]] = PPOLearner.recorded_as
    metric_names: ClassVar[Sequence[str]] = tuple(
        name for name in PPOLearner.metric_names if name not in ("vf_loss_unclipped", "gradients_global_norm")
    )

    @property
    def least_minibatch(self) -> int:
        """See `OnPolicyLearner.least_minibatch`: they normalise the advantages of each minibatch."""
        return self.least_transitions
