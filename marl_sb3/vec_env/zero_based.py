"""Discrete and MultiDiscrete spaces of any start, as SB3 sees them: it counts from 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.types import Array, Observations

_WHOLE = ""  # the key of a space that is no Dict


class _Shift:
    """The start of one Discrete or MultiDiscrete space."""

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        self._start = np.asarray(space.start)
        self._largest = (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1

    def down(self, values: Any) -> Array:
        array = np.asarray(values)
        return (array - self._start).astype(array.dtype)

    def down_with_filler(self, values: Array) -> Array:
        return np.clip(self.down(values), 0, self._largest).astype(values.dtype)

    def up(self, values: Any) -> Array:
        array = np.asarray(values)
        return (array + self._start).astype(array.dtype)


class ZeroBased:
    """Counts from 0 where a space counts from its `start`; everything else passes unchanged.

    Args:
        space: the env's observation or action space, or a Dict of such spaces.

    Attributes:
        space: the same space, counted from 0.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        parts = space.spaces if isinstance(space, spaces.Dict) else {_WHOLE: space}
        self._shifts = {key: _Shift(part) for key, part in parts.items() if np.any(getattr(part, "start", 0))}  # type: ignore[arg-type]
        self.space = _counted_from_zero(space) if self._shifts else space

    def from_env(self, observation: Any) -> Any:
        """Observations of the env, one or a batch, counted from 0."""
        return self._shifted(observation, _Shift.down)

    def from_rows(self, observations: Observations) -> Observations:
        """Like `from_env`, for rows of which some do not act: the zeros in their places become points of the space."""
        return self._shifted(observations, _Shift.down_with_filler)  # type: ignore[no-any-return]

    def to_env(self, actions: Any) -> Any:
        """Actions counted from 0, one or a batch, as the env counts them."""
        return self._shifted(actions, _Shift.up)

    def _shifted(self, values: Any, shift: Any) -> Any:
        if not self._shifts:
            return values
        if _WHOLE in self._shifts:
            return shift(self._shifts[_WHOLE], values)
        return {key: shift(self._shifts[key], value) if key in self._shifts else value for key, value in values.items()}


def _counted_from_zero(space: spaces.Space[Any]) -> spaces.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, _counted_from_zero(part)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n), dtype=space.dtype.type) if np.any(space.start) else space
    if isinstance(space, spaces.MultiDiscrete) and np.any(space.start):
        return spaces.MultiDiscrete(space.nvec.copy(), dtype=space.dtype.type)
    return space
