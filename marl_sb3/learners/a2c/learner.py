"""Train a policy by `marl_sb3.A2C`, on either of its update paths, or by `stable_baselines3.A2C`."""

from __future__ import annotations

from typing import ClassVar

from marl_sb3.learners.fused_learner import FusedLearner


class A2CLearner(FusedLearner):
    """Trains by A2C. Its rollouts are short: as in SB3, metrics are reported once per hundred rollouts."""

    rollouts_per_report: ClassVar[int] = 100
    takes_common_steps: ClassVar[bool] = False
