"""Rescale actions: the policy acts in [-1, 1], and the env gets actions in the range of its own Box."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import ConfigError
from marl_sb3.types import Array


class RescaleActions:
    """Maps [-1, 1] to the range of a Box, as Gymnasium's `RescaleAction(env, -1, 1)` does.

    Args:
        space: the env's action space.

    Attributes:
        space: the policy's action space.
        low: lower bounds of the env's actions.
        high: upper bounds of the env's actions.

    Raises:
        ConfigError: the env's action space is no Box with finite bounds.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        if not isinstance(space, spaces.Box) or not (space.is_bounded() and (space.low < space.high).all()):
            words = f"rescale_actions: the action space is {space}; accepted: a Box with finite bounds"
            raise ConfigError(words, key="rescale_actions")
        assert space.dtype is not None
        self.low, self.high, self._dtype = space.low, space.high, space.dtype
        self.space = spaces.Box(-1, 1, space.shape, space.dtype.type)

    def __call__(self, actions: Array) -> Array:
        """Convert (rows, ...) actions of the policy to actions of the env."""
        scaled: Array = self.low + (actions + 1) * 0.5 * (self.high - self.low)
        inside: Array = np.clip(scaled, self.low, self.high)  # rounding must not leave the Box
        return inside.astype(self._dtype)

    def reverse(self, actions: Array) -> Array:
        """Convert (rows, ...) actions of the env to actions of the policy."""
        scaled: Array = 2.0 * (actions - self.low) / (self.high - self.low) - 1.0
        return scaled.astype(self._dtype)
