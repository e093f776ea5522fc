"""Gymnasium spaces from the plain data of a checkpoint, which is untrusted; `space_to_plain` of the core writes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.core.state import DTYPES_OF_BOXES, INTEGERS, StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.types import Array

_INFINITE = {"inf": math.inf, "-inf": -math.inf}
_MAX_DIMENSIONS = 32

Space = spaces.Space[Any]


def space_from_plain(plain: StateReader) -> Space:
    """Make a space from the plain data that `space_to_plain` returned.

    Args:
        plain: the description, which is untrusted.

    Raises:
        CheckpointError: it does not describe a space.
    """
    kind = _one_of(plain, "kind", _KINDS)
    try:
        return _KINDS[kind](plain)
    except CheckpointError:
        raise
    except (ValueError, TypeError, AssertionError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"{plain.where} describes no {kind}: {error}") from error


def _box_from_plain(plain: StateReader) -> spaces.Box:
    dtype = np.dtype(_one_of(plain, "dtype", DTYPES_OF_BOXES))
    shape = _shape(plain, "shape")
    low, high = (_bound_from_plain(plain, name, dtype, shape) for name in ("low", "high"))
    if (low > high).any():
        raise CheckpointError(f"{plain.where} has a low bound above the high one")
    return spaces.Box(low, high, shape, dtype.type)


def _bound_from_plain(plain: StateReader, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    value = plain.value(name)
    if isinstance(value, Mapping):
        parts = plain.fields(name)
        bound, sign = parts.array("finite", dtype, shape), parts.array("sign", np.int8, shape)
        if dtype.kind == "f":
            bound[sign > 0], bound[sign < 0] = np.inf, -np.inf
        return bound
    if isinstance(value, str) and value in _INFINITE and dtype.kind == "f":
        value = _INFINITE[value]
    elif isinstance(value, (str, bool)) or not isinstance(value, (int, float)) or not _holds(dtype, value):
        raise plain.error(name, value, f"a number of {dtype}, or inf or -inf for floats")
    return np.full(shape, value, dtype)


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether a number fits the dtype: within its range, and an integer for integer dtypes."""
    if dtype.kind == "f":
        return bool(abs(value) <= float(np.finfo(dtype).max))
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return isinstance(value, int) and low <= value <= high


def _multi_discrete_from_plain(plain: StateReader) -> spaces.MultiDiscrete:
    dtype = np.dtype(_one_of(plain, "dtype", INTEGERS))
    shape = _shape(plain, "shape")
    nvec, start = (plain.array(name, np.int64, shape) for name in ("nvec", "start"))
    if (nvec < 1).any() or (np.abs(start) > 2**53).any():
        raise CheckpointError(f"{plain.where} has numbers of choices below 1, or starts out of range")
    return spaces.MultiDiscrete(nvec.astype(dtype), dtype.type, start=start.astype(dtype))


def _multi_binary_from_plain(plain: StateReader) -> spaces.MultiBinary:
    if isinstance(plain.value("n"), list):
        return spaces.MultiBinary(list(_shape(plain, "n")))
    return spaces.MultiBinary(plain.integer("n", 1))


def _dict_from_plain(plain: StateReader) -> spaces.Dict:
    """Keeps the order of the parts."""
    parts = plain.fields("spaces")
    read: dict[str, Space] = {}
    for name in parts.names():
        part = parts.fields(name)
        _one_of(part, "kind", [kind for kind in _KINDS if kind != "Dict"])
        read[name] = space_from_plain(part)
    return spaces.Dict(list(read.items()))  # pairs keep their order; `sort_keys` is of Gymnasium 1.4


def _one_of(plain: StateReader, name: str, accepted: Any) -> str:
    value = plain.string(name)
    if value not in accepted:
        raise plain.error(name, value, ", ".join(accepted))
    return value


def _shape(plain: StateReader, name: str) -> tuple[int, ...]:
    sizes = plain.listed(name)
    shape = tuple(sizes.integer(number) for number in sizes)
    if len(shape) > _MAX_DIMENSIONS:
        raise plain.error(name, plain.value(name), f"at most {_MAX_DIMENSIONS} dimensions")
    return shape


_KINDS: Mapping[str, Callable[[StateReader], Space]] = {
    "Box": _box_from_plain,
    "Discrete": lambda plain: spaces.Discrete(plain.integer("n", 1), start=plain.integer("start", -(2**53))),
    "MultiDiscrete": _multi_discrete_from_plain,
    "MultiBinary": _multi_binary_from_plain,
    "Dict": _dict_from_plain,
}
