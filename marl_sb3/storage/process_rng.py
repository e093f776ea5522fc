"""Save and restore the global random generators of Python, NumPy and PyTorch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch as th

from marl_sb3.errors import CheckpointError
from marl_sb3.storage.parts import Field, Fields, Stateful
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array

_PYTHON_WORDS = 625  # Python's Mersenne twister: 624 words and the position
_NUMPY_WORDS = 624

# PyTorch's Mersenne twister reads `left` words from index `next` on: `CPUGeneratorImplState` in aten/src/ATen.
_TORCH = np.dtype(
    [
        ("seed", "u8"),
        ("left", "i4"),
        ("seeded", "i4"),
        ("next", "u8"),
        ("words", "u8", 624),
        ("normals", "f8", 3),
        ("has_normal", "i4"),
        ("gap", "V4"),
        ("float_normal", "f4"),
        ("has_float_normal", "u1"),
        ("end", "V3"),
    ]
)


class ProcessRandomness(Stateful):
    """The generators as a part of a training."""

    fields: ClassVar[Fields] = {
        "python": Field(
            lambda _: _python_state(),
            lambda _, state, name: _read_python(state.fields(name)),
            lambda _, read: random.setstate(read),
        ),
        "numpy": Field(
            lambda _: _numpy_state(),
            lambda _, state, name: _read_numpy(state.fields(name)),
            lambda _, read: np.random.set_state(read),  # noqa: NPY002 - SB3 uses the global generator
        ),
        "torch": Field(
            lambda _: th.get_rng_state().numpy(),
            lambda _, state, name: _read_torch(state, name),
            lambda _, read: th.set_rng_state(read),
        ),
        # The state of each CUDA device; none before CUDA is used.
        "cuda": Field(
            lambda _: [state.numpy() for state in _cuda_states()],
            lambda _, state, name: _read_cuda(state.listed(name)),
            lambda _, read: _set_cuda_states(read),
        ),
    }


def _python_state() -> State:
    _, words, gauss = random.getstate()
    return {"words": np.array(words, dtype=np.uint32), "gauss": gauss}


def _read_python(state: StateReader) -> tuple[int, tuple[int, ...], float | None]:
    words = state.array("words", np.uint32, (_PYTHON_WORDS,)).tolist()
    gauss = None if state.value("gauss") is None else state.number("gauss")
    if words[-1] > _NUMPY_WORDS:
        raise state.error("words", words[-1], f"a last word from 0 to {_NUMPY_WORDS}")
    return 3, tuple(words), gauss


def _numpy_state() -> State:
    state: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002
    return {
        "key": state["state"]["key"],
        "position": int(state["state"]["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _read_numpy(state: StateReader) -> dict[str, Any]:
    inner = {"key": state.array("key", np.uint32, (_NUMPY_WORDS,)), "pos": state.integer("position", 0, _NUMPY_WORDS)}
    has_gauss, gauss = state.integer("has_gauss", 0, 1), state.number("gauss")
    return {"bit_generator": "MT19937", "state": inner, "has_gauss": has_gauss, "gauss": gauss}


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
            not 1 <= left <= _NUMPY_WORDS
            or left + following > _NUMPY_WORDS + 1
            or not all(switch in (0, 1) for switch in switches)
            or not np.isfinite(normals).all()
        ):
            raise CheckpointError(f"{where} is not a state of PyTorch's generator")
    return _torch_state(raw, "cpu", where)


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


def _read_cuda(devices: StateReader) -> list[th.Tensor]:
    """The states of the devices; none where no device is."""
    read = {name: devices.array(name, np.uint8, (None,)) for name in devices}
    if not th.cuda.is_available():
        return []
    return [_torch_state(raw, f"cuda:{name}", f"{devices.where}/{name}") for name, raw in read.items()]


def _set_cuda_states(states: list[th.Tensor]) -> None:
    if states:
        th.cuda.set_rng_state_all(states)


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the state of all global generators on exit."""
    before = random.getstate(), np.random.get_state(), th.get_rng_state(), _cuda_states()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        th.set_rng_state(before[2])
        _set_cuda_states(before[3])
