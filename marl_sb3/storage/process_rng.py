"""The generators of random numbers that the whole process shares: Python's, NumPy's and PyTorch's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th

from marl_sb3.errors import CheckpointError
from marl_sb3.storage.state import State, StateReader

_PYTHON_WORDS = 625  # of Python's Mersenne twister: 624 and the position in them
_NUMPY_WORDS = 624

# PyTorch's twister, which reads at `next`, up to `left` times: `CPUGeneratorImplState` in aten/src/ATen.
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


def random_state() -> State:
    """Where the generators stand."""
    _, words, python_gauss = random.getstate()
    numpy_state: dict[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002
    return {
        "python": {"words": np.array(words, dtype=np.uint32), "gauss": python_gauss},
        "numpy": {
            "key": numpy_state["state"]["key"],
            "position": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": th.get_rng_state().numpy(),
        "cuda": [state.numpy() for state in _cuda_states()],
    }


def _cuda_states() -> list[th.Tensor]:
    """Of each device; none while no tensor has been on one."""
    return th.cuda.get_rng_state_all() if th.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


def set_random_state(state: StateReader) -> None:
    """Put the generators where they stood.

    Raises:
        CheckpointError: it is not such a state.
    """
    torch = _read_torch(state)  # PyTorch is the last to be asked: what it refuses leaves the others as they are
    _set_python(state.fields("python"))
    _set_numpy(state.fields("numpy"))
    try:
        th.set_rng_state(torch)
        if state.items("cuda") and th.cuda.is_available():
            devices = StateReader({str(i): array for i, array in enumerate(state.items("cuda"))}, f"{state.where}/cuda")
            th.cuda.set_rng_state_all([th.from_numpy(devices.array(name, np.uint8, (None,))) for name in devices])
    except (RuntimeError, IndexError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{state.where}/torch is not a state of PyTorch's generator: {error}") from error


def _read_torch(state: StateReader) -> th.Tensor:
    """The state of PyTorch's generator; PyTorch itself would read beyond its words if the state says so."""
    raw = state.array("torch", np.uint8, (th.get_rng_state().numel(),))
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
            raise CheckpointError(f"{state.where}/torch is not a state of PyTorch's generator")
    return th.from_numpy(raw)


def _set_python(state: StateReader) -> None:
    words = state.array("words", np.uint32, (_PYTHON_WORDS,)).tolist()
    gauss = None if state.value("gauss") is None else state.number("gauss")
    if words[-1] > _NUMPY_WORDS:
        raise state.error("words", words[-1], f"a last word from 0 to {_NUMPY_WORDS}")
    random.setstate((3, tuple(words), gauss))


def _set_numpy(state: StateReader) -> None:
    inner = {"key": state.array("key", np.uint32, (_NUMPY_WORDS,)), "pos": state.integer("position", 0, _NUMPY_WORDS)}
    np.random.set_state(  # noqa: NPY002 - SB3's stream of random numbers
        {
            "bit_generator": "MT19937",
            "state": inner,
            "has_gauss": state.integer("has_gauss", 0, 1),
            "gauss": state.number("gauss"),
        }
    )


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Whatever is drawn within, the generators stand afterwards where they stood before."""
    python, numpy_state, torch = random.getstate(), np.random.get_state(), th.get_rng_state()  # noqa: NPY002
    cuda = _cuda_states()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)  # noqa: NPY002
        th.set_rng_state(torch)
        if cuda:
            th.cuda.set_rng_state_all(cuda)
