"""A2C (Mnih et al. 2016): one gradient step on each rollout, by SB3's own `train()`."""

from __future__ import annotations

from typing import ClassVar

from marl_sb3.learners.on_policy import OnPolicyLearner


class A2CLearner(OnPolicyLearner):
    """Trains by A2C. Its rollouts are short: as in SB3, metrics are reported once per hundred rollouts."""

    rollouts_per_report: ClassVar[int] = 100
    takes_common_steps: ClassVar[bool] = False
