"""Convert Gymnasium spaces to plain data and back, with checks: Box, Discrete, MultiDiscrete, MultiBinary, Dict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import CheckpointError
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array

_INTEGERS = tuple(f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64))
_DTYPES = ("float16", "float32", "float64", *_INTEGERS, "bool")
_INFINITE = {"inf": math.inf, "-inf": -math.inf}
_MAX_DIMENSIONS = 32

Space = spaces.Space[Any]


def space_to_plain(space: Space) -> State | None:
    """Return a space as plain data for `space_from_plain`; None for other kinds of spaces and for subclasses."""
    kind = type(space).__name__
    if getattr(spaces, kind, None) is not type(space) or kind not in _KINDS:
        return None
    plain = _KINDS[kind][0](space)
    return plain and {"kind": kind, **plain}


def space_from_plain(plain: StateReader) -> Space:
    """Make a space from the plain data that `space_to_plain` returned.

    Args:
        plain: the description, which is untrusted.

    Raises:
        CheckpointError: it does not describe a space.
    """
    kind = _one_of(plain, "kind", _KINDS)
    try:
        return _KINDS[kind][1](plain)
    except CheckpointError:
        raise
    except (ValueError, TypeError, AssertionError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"{plain.where} describes no {kind}: {error}") from error


# --- Box -------------------------------------------------------------------------------------------------------------


def _box_to_plain(space: spaces.Box) -> State | None:
    dtype = str(space.dtype)
    if dtype not in _DTYPES or np.isnan(space.low).any() or np.isnan(space.high).any():
        return None
    bounds = {"low": _bound_to_plain(space.low), "high": _bound_to_plain(space.high)}
    return {"dtype": dtype, "shape": list(space.shape), **bounds}


def _bound_to_plain(bound: Array) -> Any:
    """One number if all are equal; else two arrays, because the arrays of a checkpoint must be finite."""
    first = bound.flat[0].item() if bound.size else 0
    if (bound == first).all():
        first = int(first) if isinstance(first, bool) else first
        return ("inf" if first > 0 else "-inf") if math.isinf(first) else first
    infinite = np.isinf(bound)
    signs = np.where(infinite, np.sign(bound), 0).astype(np.int8)
    return {"finite": np.where(infinite, 0, bound).astype(bound.dtype), "sign": signs}


def _box_from_plain(plain: StateReader) -> spaces.Box:
    dtype = np.dtype(_one_of(plain, "dtype", _DTYPES))
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


# --- The others ------------------------------------------------------------------------------------------------------


def _discrete_to_plain(space: spaces.Discrete) -> State | None:
    return {"n": int(space.n), "start": int(space.start)} if space.dtype == np.int64 else None


def _discrete_from_plain(plain: StateReader) -> spaces.Discrete:
    return spaces.Discrete(plain.integer("n", 1), start=plain.integer("start", -(2**53)))


def _multi_discrete_to_plain(space: spaces.MultiDiscrete) -> State:
    numbers = {name: np.asarray(getattr(space, name), np.int64) for name in ("nvec", "start")}
    return {"dtype": str(space.dtype), "shape": list(space.shape), **numbers}


def _multi_discrete_from_plain(plain: StateReader) -> spaces.MultiDiscrete:
    dtype = np.dtype(_one_of(plain, "dtype", _INTEGERS))
    shape = _shape(plain, "shape")
    nvec, start = (plain.array(name, np.int64, shape) for name in ("nvec", "start"))
    if (nvec < 1).any() or (np.abs(start) > 2**53).any():
        raise CheckpointError(f"{plain.where} has numbers of choices below 1, or starts out of range")
    return spaces.MultiDiscrete(nvec.astype(dtype), dtype.type, start=start.astype(dtype))


def _multi_binary_to_plain(space: spaces.MultiBinary) -> State:
    return {"n": space.n if isinstance(space.n, int) else list(space.shape)}


def _multi_binary_from_plain(plain: StateReader) -> spaces.MultiBinary:
    if isinstance(plain.value("n"), list):
        return spaces.MultiBinary(list(_shape(plain, "n")))
    return spaces.MultiBinary(plain.integer("n", 1))


def _dict_to_plain(space: spaces.Dict) -> State | None:
    parts = {name: space_to_plain(part) for name, part in space.spaces.items()}
    nested = any(isinstance(part, spaces.Dict) for part in space.spaces.values())
    return None if nested or None in parts.values() else {"spaces": parts}


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


_KINDS: Mapping[str, tuple[Callable[[Any], State | None], Callable[[StateReader], Space]]] = {
    "Box": (_box_to_plain, _box_from_plain),
    "Discrete": (_discrete_to_plain, _discrete_from_plain),
    "MultiDiscrete": (_multi_discrete_to_plain, _multi_discrete_from_plain),
    "MultiBinary": (_multi_binary_to_plain, _multi_binary_from_plain),
    "Dict": (_dict_to_plain, _dict_from_plain),
}
