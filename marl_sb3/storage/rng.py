"""Save and restore random generators of NumPy and of Gymnasium spaces, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import CheckpointError
from marl_sb3.storage.parts import Commit, Field, computed, in_order
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
