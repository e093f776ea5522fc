"""Gymnasium spaces as plain data, and random generators as plain data and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.core.state.fields import Commit, Field, in_order
from marl_sb3.core.state.state import MAX_SEED, State, StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.types import Array

# --- Spaces -----------------------------------------------------------------------------------------------------------


INTEGERS = tuple(f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64))
DTYPES_OF_BOXES = ("float16", "float32", "float64", *INTEGERS, "bool")

Space = spaces.Space[Any]


def space_to_plain(space: Space) -> State | None:
    """Return a space as plain data, which a store reads; None for other kinds of spaces and for subclasses."""
    kind = type(space).__name__
    if getattr(spaces, kind, None) is not type(space) or kind not in _KINDS:
        return None
    plain = _KINDS[kind](space)
    return plain and {"kind": kind, **plain}


def _box_to_plain(space: spaces.Box) -> State | None:
    dtype = str(space.dtype)
    if dtype not in DTYPES_OF_BOXES or np.isnan(space.low).any() or np.isnan(space.high).any():
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


def _dict_to_plain(space: spaces.Dict) -> State | None:
    parts = {name: space_to_plain(part) for name, part in space.spaces.items()}
    nested = any(isinstance(part, spaces.Dict) for part in space.spaces.values())
    return None if nested or None in parts.values() else {"spaces": parts}


_KINDS: Mapping[str, Callable[[Any], State | None]] = {
    "Box": _box_to_plain,
    "Discrete": lambda space: {"n": int(space.n), "start": int(space.start)} if space.dtype == np.int64 else None,
    "MultiDiscrete": lambda space: {
        "dtype": str(space.dtype),
        "shape": list(space.shape),
        **{name: np.asarray(getattr(space, name), np.int64) for name in ("nvec", "start")},
    },
    "MultiBinary": lambda space: {"n": space.n if isinstance(space.n, int) else list(space.shape)},
    "Dict": _dict_to_plain,
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

    return Field(states, read)


def generator(path: str) -> Field:
    """A generator of NumPy, an attribute."""
    get = attrgetter(path)

    def read(owner: Any, state: StateReader, name: str) -> Commit:
        own, found = get(owner), _read_generator(get(owner), state.fields(name))

        def commit() -> None:
            own.bit_generator.state = found

        return commit

    return Field(lambda owner: generator_state(get(owner)), read)


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
