"""Clip and normalise rewards. The reward of a transition is the sum of everything that was paid during it."""

from __future__ import annotations

import numpy as np

from marl_sb3.config.processing import ProcessingSettings
from marl_sb3.processing.statistics import RunningStatistics
from marl_sb3.types import Array, BoolArray


class Rewards:
    """Clips rewards, then divides them by the running standard deviation of discounted returns, as `VecNormalize` does.

    Args:
        settings: the settings of the policy.

    Attributes:
        statistics: running statistics of the returns; empty if rewards are not normalised.
    """

    def __init__(self, settings: ProcessingSettings) -> None:
        self._settings = settings
        self.statistics = {"returns": RunningStatistics(shape=())} if settings.normalize_rewards else {}

    def process(
        self, rewards: Array, returns: Array, gamma: float, closing: BoolArray, learn: bool, normalize: bool = True
    ) -> Array:
        """Process the rewards of transitions.

        Args:
            rewards: (rows,) float32; rewards of transitions.
            returns: (rows,) float64; the discounted return of each row's episode so far, updated in place.
            gamma: discount of the returns.
            closing: (rows,) bool; the rows whose transition is over. Nothing changes in the other rows.
            learn: whether the returns update the statistics.
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
