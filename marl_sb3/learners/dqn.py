"""DQN (Mnih et al. 2015) and QR-DQN (Dabney et al. 2018): Q values of discrete actions, epsilon-greedy exploration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from marl_sb3.learners.off_policy import OffPolicyLearner
from marl_sb3.metrics import Result


class DQNLearner(OffPolicyLearner):
    """`exploration_rate` is the probability of random actions."""

    recorded_as: ClassVar[Mapping[str, str]] = {**OffPolicyLearner.recorded_as, "qf_loss": "train/loss"}
    metric_names: ClassVar[Sequence[str]] = ("qf_loss", "exploration_rate", *OffPolicyLearner.metric_names)

    def _more_metrics(self) -> Result:
        algorithm: Any = self.algorithm
        return {"exploration_rate": algorithm.exploration_rate}
