"""Gymnasium spaces and random generators as plain data and back, with checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.core.state.parts import Commit, Field, computed, in_order
from marl_sb3.core.state.state import MAX_SEED, State, StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.types import Array

# --- Spaces -----------------------------------------------------------------------------------------------------------


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
    "Discrete": (
        lambda space: {"n": int(space.n), "start": int(space.start)} if space.dtype == np.int64 else None,
        lambda plain: spaces.Discrete(plain.integer("n", 1), start=plain.integer("start", -(2**53))),
    ),
    "MultiDiscrete": (_multi_discrete_to_plain, _multi_discrete_from_plain),
    "MultiBinary": (_multi_binary_to_plain, _multi_binary_from_plain),
    "Dict": (_dict_to_plain, _dict_from_plain),
}


# --- Random generators of NumPy and of spaces -------------------------------------------------------------------------


def generator_state(generator: np.random.Generator) -> State:
    """Return the state of a generator's bit generator."""
    state = generator.bit_generator.state
    return {name: dict(part) if isinstance(part, Mapping) else part for name, part in state.items()}


# NumPy does not check these numbers, and would read beyond the end of its arrays.
_GENERATOR_LIMITS = {"pos": 624, "buffer_pos": 4, "has_uint32": 1, "uinteger": 2**32 - 1}


def set_generator_state(generator: np.random.Generator, state: StateReader) -> None:
    """Restore the state of a generator.

    Raises:
        CheckpointError: it is not the state of such a generator; the generator has not changed.
    """
    generator.bit_generator.state = _read_generator(generator, state)


def _read_generator(generator: np.random.Generator, state: StateReader) -> State:
    """The state of such a generator, as its bit generator takes it."""
    wanted = generator_state(generator)
    read = _read_like(wanted, state)
    try:
        type(generator.bit_generator)().state = read
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
        raise CheckpointError(f"{state.where} is not the state of a {wanted['bit_generator']}: {error}") from error
    return read


def _read_like(wanted: Mapping[str, Any], state: StateReader) -> State:
    """Read the fields that `wanted` has: equal strings, arrays of the same shape, numbers within their limits."""
    state.require_names(list(wanted))
    read: State = {}
    for name, own in wanted.items():
        if isinstance(own, Mapping):
            read[name] = _read_like(own, state.fields(name))
        elif isinstance(own, np.ndarray):
            read[name] = state.array(name, own.dtype, own.shape)
        elif isinstance(own, str):
            read[name] = state.string(name)
            if read[name] != own:
                raise state.error(name, read[name], own)
        else:
            read[name] = state.integer(name, 0, _GENERATOR_LIMITS.get(name, MAX_SEED - 1))
    return read


def generators(path: str) -> Field:
    """The generators of a space, an attribute, and of its parts; None for a generator that was never used."""
    get = attrgetter(path)

    def states(owner: Any) -> list[State | None]:
        return [None if part._np_random is None else generator_state(part._np_random) for part in _parts(get(owner))]

    def read(owner: Any, state: StateReader, name: str) -> Commit:
        parts = _parts(get(owner))
        saved = state.listed(name, len(parts))
        return in_order([_read_part(part, saved, str(number)) for number, part in enumerate(parts)])

    return computed(states, read)


def generator(path: str) -> Field:
    """A generator of NumPy, an attribute."""
    get = attrgetter(path)

    def read(owner: Any, state: StateReader, name: str) -> Commit:
        own, found = get(owner), _read_generator(get(owner), state.fields(name))

        def commit() -> None:
            own.bit_generator.state = found

        return commit

    return computed(lambda owner: generator_state(get(owner)), read)


def _read_part(part: spaces.Space[Any], saved: StateReader, name: str) -> Commit:
    unused = saved.value(name) is None
    read = None if unused else _read_generator(np.random.default_rng(0), saved.fields(name))

    def commit() -> None:
        part._np_random = None  # type: ignore[assignment]
        if read is not None:
            part.np_random.bit_generator.state = read

    return commit


def _parts(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    inner = space.spaces.values() if isinstance(space, spaces.Dict) else getattr(space, "spaces", ())
    return [space, *(part for child in inner for part in _parts(child))]
