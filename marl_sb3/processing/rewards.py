"""Clip and normalise rewards: one number for each transition, everything that it was paid."""

from __future__ import annotations

import numpy as np

from marl_sb3.config.processing import ProcessingSettings
from marl_sb3.processing.statistics import RunningStatistics
from marl_sb3.types import Array, BoolArray


class Rewards:
    """Clips rewards, then divides them by the running standard deviation of discounted returns, as `VecNormalize` does.

    Args:
        settings: what is on.

    Attributes:
        statistics: of the returns, if rewards are normalised.
    """

    def __init__(self, settings: ProcessingSettings) -> None:
        self._settings = settings
        self.statistics = {"returns": RunningStatistics(shape=())} if settings.normalize_rewards else {}

    def process(
        self, rewards: Array, returns: Array, gamma: float, closing: BoolArray, learn: bool, normalize: bool = True
    ) -> Array:
        """Process the rewards of transitions.

        Args:
            rewards: (rows,) float32; what transitions were paid.
            returns: (rows,) float64; the discounted return of each row's episode so far, which is brought up to date.
            gamma: the discount.
            closing: (rows,) bool; the rows whose transition is over. The others stay as they are.
            learn: whether the statistics take the returns in.
            normalize: whether rewards are normalised; the statistics take them in anyway.

        Returns:
            (rows,) float32.
        """
        settings = self._settings
        if settings.clip_rewards is not None:
            rewards = np.clip(rewards, -settings.clip_rewards, settings.clip_rewards)
        if settings.normalize_rewards and closing.any():
            own = self.statistics["returns"]
            if learn:
                returns[closing] = returns[closing] * gamma + rewards[closing]
                own.update(returns[closing])
            if normalize:
                limit = settings.clip_normalized_rewards
                rewards = np.clip(rewards / np.sqrt(own.var + settings.normalize_epsilon), -limit, limit)
        return rewards.astype(np.float32)
