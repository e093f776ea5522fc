"""Save and restore the global random generators of Python, NumPy and PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch as th

from marl_sb3.errors import CheckpointError
from marl_sb3.storage.state import State, StateReader

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


class ProcessRandomness:
    """The generators as a `Part` of a training."""

    def get_state(self) -> State:
        """See `Part.get_state`."""
        return random_state()

    def read_state(self, saved: StateReader) -> Callable[[], None]:
        """See `Part.read_state`."""
        return read_random_state(saved)


def random_state() -> State:
    """Return the state of the generators."""
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
    """The state of each CUDA device; none before CUDA is used."""
    return th.cuda.get_rng_state_all() if th.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


def read_random_state(state: StateReader) -> Callable[[], None]:
    """Check a state of the generators.

    Returns:
        A function that restores it.
    """
    torch, cuda = _read_torch(state), _read_cuda(state)
    python, numpy_state = _read_python(state.fields("python")), _read_numpy(state.fields("numpy"))
    return lambda: _put_back(python, numpy_state, torch, cuda)


def _read_cuda(state: StateReader) -> list[th.Tensor]:
    """The states of the devices; none where no device is."""
    devices = state.listed("cuda")
    read = [th.from_numpy(devices.array(name, np.uint8, (None,))) for name in devices]
    if not th.cuda.is_available():
        return []
    for number, device in enumerate(read):
        _require_torch_state(device, f"cuda:{number}", f"{devices.where}/{number}")
    return read


def _read_torch(state: StateReader) -> th.Tensor:
    """Check the state of PyTorch's generator. PyTorch does not: a wrong index would make it read foreign memory."""
    raw = state.array("torch", np.uint8, (th.get_rng_state().numel(),))
    where = f"{state.where}/torch"
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
    read = th.from_numpy(raw)
    _require_torch_state(read, "cpu", where)
    return read


def _require_torch_state(state: th.Tensor, device: str, where: str) -> None:
    """Check a state by setting it in an unused generator."""
    try:
        th.Generator(device).set_state(state)
    except (RuntimeError, IndexError) as error:
        raise CheckpointError(f"{where} is not a state of PyTorch's generator: {error}") from error


def _read_python(state: StateReader) -> tuple[int, tuple[int, ...], float | None]:
    words = state.array("words", np.uint32, (_PYTHON_WORDS,)).tolist()
    gauss = None if state.value("gauss") is None else state.number("gauss")
    if words[-1] > _NUMPY_WORDS:
        raise state.error("words", words[-1], f"a last word from 0 to {_NUMPY_WORDS}")
    return 3, tuple(words), gauss


def _read_numpy(state: StateReader) -> dict[str, Any]:
    inner = {"key": state.array("key", np.uint32, (_NUMPY_WORDS,)), "pos": state.integer("position", 0, _NUMPY_WORDS)}
    has_gauss, gauss = state.integer("has_gauss", 0, 1), state.number("gauss")
    return {"bit_generator": "MT19937", "state": inner, "has_gauss": has_gauss, "gauss": gauss}


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the state of all global generators on exit."""
    before = random.getstate(), np.random.get_state(), th.get_rng_state(), _cuda_states()  # noqa: NPY002
    try:
        yield
    finally:
        _put_back(*before)


def _put_back(python: Any, numpy_state: Any, torch: th.Tensor, cuda: list[th.Tensor]) -> None:
    random.setstate(python)
    np.random.set_state(numpy_state)  # noqa: NPY002 - SB3 uses the global generator
    th.set_rng_state(torch)
    if cuda:
        th.cuda.set_rng_state_all(cuda)
