"""Save and restore random generators: the global ones of Python, NumPy and PyTorch, and those of objects."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces

from marl_sb3.core.state.fields import Commit, Field, Fields, Stateful, in_order
from marl_sb3.core.state.state import MAX_SEED, State, StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.types import Array

_PYTHON_WORDS = 625  # Python's Mersenne twister: 624 words and the position
_NUMPY_WORDS = 624

# PyTorch's Mersenne twister reads `left` words from index `next` on: `CPUGeneratorImplState` in aten/src/ATen.
_TORCH = np.dtype(
    {
        "names": ["left", "seeded", "next", "normals", "has_normal", "float_normal", "has_float_normal"],
        "formats": ["i4", "i4", "u8", "3f8", "i4", "f4", "u1"],
        "offsets": [8, 12, 16, 5016, 5040, 5048, 5052],
        "itemsize": 5056,
    }
)


def _python_state(_: object) -> State:
    _, words, gauss = random.getstate()
    return {"words": np.array(words, dtype=np.uint32), "gauss": gauss}


def _read_python(_: object, states: StateReader, name: str) -> Commit:
    state = states.fields(name)
    words = state.array("words", np.uint32, (_PYTHON_WORDS,)).tolist()
    gauss = None if state.value("gauss") is None else state.number("gauss")
    if words[-1] > _NUMPY_WORDS:
        raise state.error("words", words[-1], f"a last word from 0 to {_NUMPY_WORDS}")
    return partial(random.setstate, (3, tuple(words), gauss))


def _numpy_state(_: object) -> State:
    state: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002
    return {
        "key": state["state"]["key"],
        "position": int(state["state"]["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _read_numpy(_: object, states: StateReader, name: str) -> Commit:
    state = states.fields(name)
    inner = {"key": state.array("key", np.uint32, (_NUMPY_WORDS,)), "pos": state.integer("position", 0, _NUMPY_WORDS)}
    has_gauss, gauss = state.integer("has_gauss", 0, 1), state.number("gauss")
    read = {"bit_generator": "MT19937", "state": inner, "has_gauss": has_gauss, "gauss": gauss}
    return partial(np.random.set_state, read)


def _read_torch(_: object, state: StateReader, name: str) -> Commit:
    """Check the state of PyTorch's generator. PyTorch does not: a wrong index would make it read foreign memory."""
    raw = state.array(name, np.uint8, (th.get_rng_state().numel(),))
    where = f"{state.where}/{name}"
    if raw.nbytes == _TORCH.itemsize:
        fields = raw.view(_TORCH)[0]
        left, following = int(fields["left"]), int(fields["next"])
        switches = (fields["seeded"], fields["has_normal"], fields["has_float_normal"])
        normals = (*fields["normals"], fields["float_normal"])
        if (
            not 1 <= left <= _NUMPY_WORDS
            or left + following > _NUMPY_WORDS + 1
            or not {0, 1}.issuperset(switches)
            or not np.isfinite(normals).all()
        ):
            raise CheckpointError(f"{where} is not a state of PyTorch's generator")
    return partial(th.set_rng_state, _torch_state(raw, "cpu", where))


def _torch_state(raw: Array, device: str, where: str) -> th.Tensor:
    """Check a state by setting it in an unused generator."""
    state = th.from_numpy(raw)
    try:
        th.Generator(device).set_state(state)
    except (RuntimeError, IndexError) as error:
        raise CheckpointError(f"{where} is not a state of PyTorch's generator: {error}") from error
    return state


def _cuda_states() -> list[th.Tensor]:
    return th.cuda.get_rng_state_all() if th.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


def _read_cuda(_: object, state: StateReader, name: str) -> Commit:
    """Read the states of the devices; none are set where no device is."""
    devices, states = state.listed(name), []
    for device in devices:
        raw = devices.array(device, np.uint8, (None,))
        if th.cuda.is_available():
            states.append(_torch_state(raw, f"cuda:{device}", f"{devices.where}/{device}"))
    return partial(_set_cuda, states)


def _set_cuda(states: list[th.Tensor]) -> None:
    if states:
        th.cuda.set_rng_state_all(states)


class ProcessRandomness(Stateful):
    """The generators as a part of a training."""

    fields: ClassVar[Fields] = {
        "python": Field(_python_state, _read_python),
        "numpy": Field(_numpy_state, _read_numpy),
        "torch": Field(lambda _: th.get_rng_state().numpy(), _read_torch),
        # The state of each CUDA device; none before CUDA is used.
        "cuda": Field(lambda _: [state.numpy() for state in _cuda_states()], _read_cuda),
    }


RngStates = tuple[Any, Any, th.Tensor, list[th.Tensor]]  # of Python, NumPy, PyTorch, and each CUDA device


def get_rng() -> RngStates:
    """Return the states of all global generators."""
    return random.getstate(), np.random.get_state(), th.get_rng_state(), _cuda_states()  # noqa: NPY002


def set_rng(states: RngStates) -> None:
    """Set the states of all global generators."""
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    th.set_rng_state(states[2])
    _set_cuda(states[3])


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the state of all global generators on exit."""
    before = get_rng()
    try:
        yield
    finally:
        set_rng(before)


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
