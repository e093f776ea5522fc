"""Describe what is wrong with an observation or a reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.types import Array, BoolArray

_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_NONE_UNFIT: BoolArray = np.zeros(1, dtype=np.bool_)


def _array_fault(space: spaces.Space[Any], value: Any) -> str | None:
    """Describe what is wrong with a value of a Box or MultiBinary space; the bounds of a Box are not checked."""
    array = np.asarray(value)
    if array.shape != space.shape:
        return f"has shape {array.shape}, its space says {space.shape}"
    assert space.dtype is not None
    if array.dtype != space.dtype and not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return f"has dtype {array.dtype}, its space says {space.dtype}"
    unfit = unfit_numbers(array, space.dtype)
    if not np.count_nonzero(unfit):  # for few numbers much faster than any()
        return None
    where = tuple(int(i) for i in np.argwhere(unfit)[0])
    return f"is {unfit_words(array[where], space.dtype)} at index {where}"


def unfit_numbers(array: Array, dtype: np.dtype[Any]) -> BoolArray:
    """Mark numbers that are not finite, or do not fit the space's dtype or float32, in which networks compute.

    Args:
        array: numbers of any shape.
        dtype: dtype of the space.

    Returns:
        Bool, of the array's shape; a single False if the dtypes rule such numbers out.
    """
    unfit: BoolArray
    if array.dtype.kind == "f":
        if array.dtype == dtype and dtype.itemsize <= 4:
            unfit = ~np.isfinite(array)
        else:
            largest = min(_LARGEST_FLOAT32, float(np.finfo(dtype).max)) if dtype.kind == "f" else _LARGEST_FLOAT32
            unfit = ~(np.abs(array.astype(np.float64)) <= largest)  # `not <=` is true of NaN, too
    elif array.dtype.kind in "iu" and dtype.kind in "iu" and array.dtype != dtype:
        unfit = (array < np.iinfo(dtype).min) | (array > np.iinfo(dtype).max)
    else:
        unfit = _NONE_UNFIT
    return unfit


def unfit_words(number: Any, dtype: np.dtype[Any]) -> str:
    """Describe a number that `unfit_numbers` has marked."""
    if not np.isfinite(number):
        return str(number)
    if dtype.kind != "f" or dtype.itemsize < 4:
        return f"{number} (too large for {dtype}, its space's dtype)"
    return f"{number} (too large for float32, in which networks compute)"


def _integers_fault(space: spaces.Space[Any], value: Any) -> str | None:
    """Like `space.contains`, in half the time."""
    assert isinstance(space, spaces.MultiDiscrete)
    array = np.asarray(value)
    if array.shape != space.shape or array.dtype.kind not in "iu":
        return f"has shape {array.shape} and dtype {array.dtype}, its space is {space}"
    above = array - space.start
    return None if ((above >= 0) & (above < space.nvec)).all() else f"is {value!r}, which is not in {space}"


def _member_fault(space: spaces.Space[Any], value: Any) -> str | None:
    return None if space.contains(value) else f"is {value!r}, which is not in {space}"


def _dict_fault(space: spaces.Space[Any], value: Any) -> str | None:
    assert isinstance(space, spaces.Dict)
    if not isinstance(value, Mapping) or set(value) != set(space.spaces):
        keys = sorted(value) if isinstance(value, Mapping) else type(value).__name__
        return f"has keys {keys}, its space says {sorted(space.spaces)}"
    for key, part in space.spaces.items():
        fault = observation_fault(part, value[key])
        if fault:
            return f"{fault} (key {key!r})"
    return None


_FAULTS: Mapping[type, Callable[[spaces.Space[Any], Any], str | None]] = {
    spaces.Box: _array_fault,
    spaces.MultiBinary: _array_fault,
    spaces.MultiDiscrete: _integers_fault,
    spaces.Dict: _dict_fault,
}


def observation_fault(space: spaces.Space[Any], value: Any) -> str | None:
    """Describe why `value` is not an observation of `space`, as the end of a sentence; None if it is one."""
    try:
        return _FAULTS.get(type(space), _member_fault)(space, value)
    except ValueError:  # NumPy raises it for ragged lists
        return f"is {value!r}, not an array"


def reward_fault(reward: Any) -> str | None:
    """Describe why `reward` is not a finite number, as the end of a sentence; None if it is one."""
    if type(reward) is float and -_LARGEST_FLOAT32 <= reward <= _LARGEST_FLOAT32:  # fast path: NumPy takes longer
        return None
    try:
        number = np.asarray(reward)
        finite = number.ndim == 0 and number.dtype.kind in "biuf" and bool(np.isfinite(number))
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors with gradients
        finite = False
    if not finite:
        return f"is {reward!r}, not a finite number"
    return (
        None if abs(reward) <= _LARGEST_FLOAT32 else f"is {reward!r}, too large for float32, in which rewards are kept"
    )
