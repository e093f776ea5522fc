"""Stack the latest observations into one, as SB3's `VecFrameStack`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first

from marl_sb3.errors import ConfigError
from marl_sb3.processing.by_key import Space, named, part, parts_of, with_parts
from marl_sb3.processing.interface import Look, Memory, ObservationProcessor
from marl_sb3.types import Array, Observations


class FrameStack(ObservationProcessor):
    """Stacks the latest observations of a row, the newest last: along the channels of an image, or along the last axis.

    Only observations that the row acts on are frames. Frames before the first one of an episode are zeros.

    Args:
        space: the observation space: a Box of at least one axis, or a Dict of such Boxes.
        frames: number of frames in a stack.

    Raises:
        ConfigError: a part of the space is no such Box.
    """

    def __init__(self, space: Space, frames: int) -> None:
        self._parts = {key: _StackedBox(key, box, frames) for key, box in parts_of(space).items()}
        self.space = with_parts(space, {key: each.space for key, each in self._parts.items()})

    def initial(self, rows: int) -> Memory:
        """See `ObservationProcessor.initial`."""
        return {_name(key): each.zeros(rows) for key, each in self._parts.items()}

    def observe(self, look: Look) -> tuple[Observations, Memory]:
        """See `ObservationProcessor.observe`."""
        after = {
            _name(key): each.shifted(look.memory[_name(key)], part(look.seen, key)) for key, each in self._parts.items()
        }
        if isinstance(look.seen, dict):
            return {key: after[_name(key)] for key in look.seen}, after
        return next(iter(after.values())), after


def _name(key: str) -> str:
    """Return the name of a part's frames in the memory."""
    return f"frames.{key}" if key else "frames"


class _StackedBox:
    def __init__(self, key: str, box: Any, frames: int) -> None:
        if not isinstance(box, spaces.Box) or not box.shape:
            words = f"frame_stack: {named(key)}the space is {box}; accepted: a Box of at least one axis"
            raise ConfigError(words, key="frame_stack")
        channels_first = is_image_space(box) and is_image_space_channels_first(box)
        self._axis = 0 if channels_first else len(box.shape) - 1
        self._length = box.shape[self._axis]
        low, high = (np.concatenate([bound] * frames, axis=self._axis) for bound in (box.low, box.high))
        assert box.dtype is not None
        # The zeros before the first frame belong to the space, too.
        self.space = spaces.Box(np.minimum(low, 0), np.maximum(high, 0), dtype=box.dtype.type)

    def zeros(self, rows: int) -> Array:
        return np.zeros((rows, *self.space.shape), dtype=self.space.dtype)

    def shifted(self, frames: Array, newest: Array) -> Array:
        kept = (slice(None),) * (self._axis + 1) + (slice(self._length, None),)
        return np.concatenate([frames[kept], newest.astype(frames.dtype, copy=False)], axis=self._axis + 1)
