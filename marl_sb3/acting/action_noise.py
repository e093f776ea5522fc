"""Action noise by name, and one process of it for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise, OrnsteinUhlenbeckActionNoise

from marl_sb3.errors import ConfigError
from marl_sb3.storage.parts import Fields, Stateful, array
from marl_sb3.types import Array, BoolArray

_BY_NAME: Mapping[str, Callable[[Array, Array], ActionNoise]] = {
    "normal": NormalActionNoise,
    "ornstein_uhlenbeck": OrnsteinUhlenbeckActionNoise,
}


def make_action_noise(setting: Any, action_space: spaces.Space[Any]) -> ActionNoise | None:
    """Make the action noise that a hyperparameter describes: `{normal: 0.1}`, or an SB3 object, or None.

    Args:
        setting: a mapping of one name to the scale, in an action space of -1 to 1.
        action_space: of the policy.

    Raises:
        ConfigError: the action space is no Box.
    """
    if setting is None or isinstance(setting, ActionNoise):
        return setting
    if not isinstance(action_space, spaces.Box):
        raise ConfigError(f"action_noise is {setting!r}; accepted for {action_space}: null", key="action_noise")
    ((name, scale),) = setting.items()
    mean = np.zeros(action_space.shape)
    return _BY_NAME[name](mean, np.full(action_space.shape, float(scale)))


class RowNoise(Stateful):
    """A noise process for each row. It starts anew where an episode of the row's agent starts.

    Args:
        base: a process of the policy, of which each row gets a copy.
    """

    def __init__(self, base: ActionNoise, num_rows: int) -> None:
        self._of_rows = [deepcopy(base) for _ in range(num_rows)]

    def draw(self, acting: BoolArray | None) -> Array:
        """Draw for the rows that act, (rows,) bool, or all of them; returns (acting rows, *action shape)."""
        rows = range(len(self._of_rows)) if acting is None else np.flatnonzero(acting)
        return np.stack([self._of_rows[row]() for row in rows])

    def reset(self, rows: BoolArray) -> None:
        """Start the processes of these rows, (rows,) bool, anew."""
        for row in np.flatnonzero(rows):
            self._of_rows[row].reset()

    fields: ClassVar[Fields] = {"previous": array("_previous")}

    @property
    def _previous(self) -> Array | None:
        """What the processes remember, (rows, *action shape); None for processes without memory."""
        kept = [np.asarray(noise.noise_prev) for noise in self._of_rows if hasattr(noise, "noise_prev")]
        return np.stack(kept) if kept else None

    @_previous.setter
    def _previous(self, previous: Array | None) -> None:
        for row, noise in enumerate(self._of_rows if previous is not None else ()):
            noise.noise_prev = previous[row]  # type: ignore[attr-defined, index]
