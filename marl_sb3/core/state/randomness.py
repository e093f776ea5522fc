"""Save and restore random generators: the global ones of Python, NumPy and PyTorch, and those of objects."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from marl_sb3.core.state.fields import Commit, Field
from marl_sb3.core.state.state import MAX_SEED, State, StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.types import Array

_WORDS = 624  # of a Mersenne twister

# Python, NumPy and PyTorch do not check these numbers, and would read beyond the end of their arrays.
_MOST = {"pos": _WORDS, "position": _WORDS, "buffer_pos": 4, "has_gauss": 1, "has_uint32": 1, "uinteger": 2**32 - 1}

# PyTorch's Mersenne twister reads `left` words from index `next` on: `CPUGeneratorImplState` in aten/src/ATen.
_TORCH = np.dtype(
    {
        "names": ["left", "seeded", "next", "normals", "has_normal", "float_normal", "has_float_normal"],
        "formats": ["i4", "i4", "u8", "3f8", "i4", "f4", "u1"],
        "offsets": [8, 12, 16, 5016, 5040, 5048, 5052],
        "itemsize": 5056,
    }
)


RngStates = tuple[Any, Any, th.Tensor, list[th.Tensor]]  # of Python, NumPy, PyTorch, and each CUDA device


def get_rng() -> RngStates:
    """Return the states of all global generators; no CUDA device has one before CUDA is used."""
    cuda = th.cuda.get_rng_state_all() if th.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return random.getstate(), np.random.get_state(), th.get_rng_state(), cuda  # noqa: NPY002


def set_rng(states: RngStates) -> None:
    """Set the states of all global generators."""
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    th.set_rng_state(states[2])
    if states[3]:
        th.cuda.set_rng_state_all(states[3])


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the state of all global generators on exit."""
    before = get_rng()
    try:
        yield
    finally:
        set_rng(before)


# --- As a part of a training ------------------------------------------------------------------------------------------


class ProcessRandomness:
    """The global generators as a part of a training."""

    def get_state(self) -> State:
        """See `Part.get_state`."""
        (_, words, gauss), (_, key, *numbers), torch, cuda = get_rng()
        return {
            "python": {"words": np.array(words, dtype=np.uint32), "gauss": gauss},
            "numpy": {"key": key, **dict(zip(("position", "has_gauss", "gauss"), numbers, strict=True))},
            "torch": torch.numpy(),
            "cuda": [state.numpy() for state in cuda],
        }

    def read_state(self, saved: StateReader) -> Commit:
        """See `Part.read_state`."""
        own = self.get_state()
        saved.require_names(list(own))
        python = saved.fields("python")
        words = python.array("words", np.uint32, (_WORDS + 1,)).tolist()  # and the position
        gauss = None if python.value("gauss") is None else python.number("gauss")
        if words[-1] > _WORDS:
            raise python.error("words", words[-1], f"a last word from 0 to {_WORDS}")
        numpy = "MT19937", *_read_numbers(saved, "numpy", own["numpy"]).values()
        return partial(set_rng, ((3, tuple(words), gauss), numpy, _read_torch(saved, "torch"), _read_cuda(saved)))


def _read_numbers(states: StateReader, name: str, own: State) -> State:
    """Read a state like `own`, with numbers that NumPy can use as indices."""
    read: State = states.like(name, own, highest=MAX_SEED - 1)
    for part in (read, read.get("state", {})):
        for key in part.keys() & _MOST.keys():
            if part[key] > _MOST[key]:
                raise states.fields(name).error(key, part[key], f"an integer from 0 to {_MOST[key]}")
    return read


def _read_torch(state: StateReader, name: str) -> th.Tensor:
    """Check the state of PyTorch's generator. PyTorch does not: a wrong index would make it read foreign memory."""
    raw = state.array(name, np.uint8, (th.get_rng_state().numel(),))
    where = f"{state.where}/{name}"
    if raw.nbytes == _TORCH.itemsize:
        fields = raw.view(_TORCH)[0]
        left, following = int(fields["left"]), int(fields["next"])
        switches = (fields["seeded"], fields["has_normal"], fields["has_float_normal"])
        normals = (*fields["normals"], fields["float_normal"])
        if (
            not 1 <= left <= _WORDS
            or left + following > _WORDS + 1
            or not {0, 1}.issuperset(switches)
            or not np.isfinite(normals).all()
        ):
            raise CheckpointError(f"{where} is not a state of PyTorch's generator")
    return _torch_state(raw, "cpu", where)


def _read_cuda(saved: StateReader) -> list[th.Tensor]:
    """Read the states of the devices; none are set where no device is."""
    devices, states = saved.listed("cuda"), []
    for device in devices:
        raw = devices.array(device, np.uint8, (None,))
        if th.cuda.is_available():
            states.append(_torch_state(raw, f"cuda:{device}", f"{devices.where}/{device}"))
    return states


def _torch_state(raw: Array, device: str, where: str) -> th.Tensor:
    """Check a state by setting it in an unused generator."""
    state = th.from_numpy(raw)
    try:
        th.Generator(device).set_state(state)
    except (RuntimeError, IndexError) as error:
        raise CheckpointError(f"{where} is not a state of PyTorch's generator: {error}") from error
    return state


# --- Random generators of NumPy and of spaces -------------------------------------------------------------------------


def generator_state(generator: np.random.Generator) -> State:
    """Return the state of a generator's bit generator."""
    return dict(generator.bit_generator.state)  # new dictionaries and arrays, as NumPy makes them


def set_generator_state(generator: np.random.Generator, state: StateReader, name: str) -> None:
    """Restore the state of a generator.

    Raises:
        CheckpointError: it is not the state of such a generator; the generator has not changed.
    """
    generator.bit_generator.state = _read_generator(generator, state, name)


def _read_generator(generator: np.random.Generator, states: StateReader, name: str) -> State:
    """The state of such a generator, as its bit generator takes it."""
    read = _read_numbers(states, name, generator_state(generator))
    try:
        type(generator.bit_generator)().state = read
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
        words = f"{states.where}/{name} is not the state of a {read['bit_generator']}: {error}"
        raise CheckpointError(words) from error
    return read


def generators(path: str) -> Field:
    """The generators of a space, an attribute, and of its parts; None for a generator that was never used."""
    get = attrgetter(path)

    def states(owner: Any) -> list[State | None]:
        return [None if part._np_random is None else generator_state(part._np_random) for part in _parts(get(owner))]

    def read(owner: Any, state: StateReader, name: str) -> list[State | None]:
        saved = state.listed(name, len(_parts(get(owner))))
        like = np.random.default_rng(0)
        return [None if saved.value(part) is None else _read_generator(like, saved, part) for part in saved]

    def put(owner: Any, states: list[State | None]) -> None:
        for part, state in zip(_parts(get(owner)), states, strict=True):
            part._np_random = None  # type: ignore[assignment]
            if state is not None:
                part.np_random.bit_generator.state = state

    return Field(states, read, put)


def generator(path: str) -> Field:
    """A generator of NumPy, an attribute."""
    get = attrgetter(path)
    return Field(
        lambda owner: generator_state(get(owner)),
        lambda owner, state, name: _read_generator(get(owner), state, name),
        lambda owner, state: setattr(get(owner).bit_generator, "state", state),
    )


def _parts(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    inner = space.spaces.values() if isinstance(space, spaces.Dict) else getattr(space, "spaces", ())
    return [space, *chain.from_iterable(map(_parts, inner))]
