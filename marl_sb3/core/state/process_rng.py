"""Save and restore the global random generators of Python, NumPy and PyTorch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch as th

from marl_sb3.core.state.fields import Commit, Field, Fields, Stateful
from marl_sb3.core.state.state import State, StateReader
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
