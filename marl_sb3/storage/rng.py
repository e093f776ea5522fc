"""Save and restore random generators of NumPy and of Gymnasium spaces, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import CheckpointError
from marl_sb3.storage.state import MAX_SEED, State, StateReader


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


def space_state(space: spaces.Space[Any]) -> list[State | None]:
    """Return the generators of a space and of its parts; None for a generator that was never used."""
    return [None if part._np_random is None else generator_state(part._np_random) for part in _parts(space)]


def read_space_state(space: spaces.Space[Any], state: StateReader, name: str) -> Callable[[], None]:
    """Check a state of the generators of a space and its parts.

    Returns:
        A function that restores it.
    """
    parts = _parts(space)
    setters = [
        _read_part(part, values, f"{state.where}/{name}/{number}")
        for number, (part, values) in enumerate(zip(parts, state.items(name, len(parts)), strict=True))
    ]

    def put_back() -> None:
        for put in setters:
            put()

    return put_back


def _read_part(part: spaces.Space[Any], values: Any, where: str) -> Callable[[], None]:
    read = None if values is None else _read_generator(np.random.default_rng(0), StateReader(values, where))

    def put_back() -> None:
        part._np_random = None  # type: ignore[assignment]
        if read is not None:
            part.np_random.bit_generator.state = read

    return put_back


def _parts(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    inner = space.spaces.values() if isinstance(space, spaces.Dict) else getattr(space, "spaces", ())
    return [space, *(part for child in inner for part in _parts(child))]
