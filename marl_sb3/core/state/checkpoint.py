"""A checkpoint as data: its state, its tensors by file, and the names of these files.

A store writes and reads it, see `marl_sb3.doors.Store`. The forms of tensors are compared with what is
expected before any number is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

import marl_sb3
from marl_sb3.core.state.state import Form, State, StateReader, TensorFile, is_finite
from marl_sb3.doors import STORES, Store
from marl_sb3.errors import CheckpointError, NumericError
from marl_sb3.types import Array

Arrays = Mapping[str, Array]
Tensors = Mapping[str, Arrays]  # file name without suffix -> tensor name -> array


@dataclass(frozen=True)
class Checkpoint:
    """The verified content of a checkpoint."""

    folder: Path  # where it was; a running training may have removed it since
    about: StateReader  # its description: iteration, env steps, score, versions
    state: State  # everything but weights and optimizer state
    tensors: Mapping[str, TensorFile]  # weights and optimizer state, by file
    # One sentence that says why a checkpoint of a run was taken; empty if the latest was asked for, or a number.
    why: str = ""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name


def store_of(path: str | Path) -> Store:
    """Return the store for a path that the user names: of those that take it, the one that was added last."""
    return next(store for store in reversed(list(STORES)) if store.takes(path))


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return version by package; with other versions, a resumed run may not be exact."""
    others = ("stable-baselines3", "torch", "numpy", "gymnasium")
    # Not by its metadata: a checkout that is not installed has none.
    return {"marl_sb3": marl_sb3.__version__, **{name: version(name) for name in others}}


# --- Tensors ---------------------------------------------------------------------------------------------------------


# The dtypes of tensors, by their names in safetensors files.
DTYPES: Mapping[str, np.dtype[Any]] = {
    **{f"{kind}{8 * size}": np.dtype(f"{kind.lower()}{size}") for kind in "IU" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    "BOOL": np.dtype(np.bool_),
}


def require_storable(file: str, forms: Mapping[str, Form] | Arrays) -> None:
    """Refuse tensors that a checkpoint cannot hold."""
    accepted = list(DTYPES.values())
    for name, form in forms.items():
        if form.dtype.newbyteorder("=") not in accepted:
            raise CheckpointError(f"{file}: {name} has dtype {form.dtype}; accepted: {', '.join(map(str, accepted))}")


def require_finite(file: str, arrays: Mapping[str, Array]) -> None:
    """Refuse to write arrays that are not finite."""
    for name, array in arrays.items():
        if not is_finite(array):
            raise NumericError(f"{file}: {name} is not finite; no checkpoint is written")


# --- The files of each policy ----------------------------------------------------------------------------------------


# Files are numbered from 0, in the order of the mapping `policies` of the state: `policy-000`.
KINDS = ("policy", "optimizer")  # weights; state of the optimizers
OPTIONAL_KINDS = ("replay",)  # the replay buffer of a policy that has one

OfPolicy = Mapping[str, TensorFile]  # the files of a policy by kind


def by_file(of_policies: Iterable[Mapping[str, Arrays]]) -> dict[str, Arrays]:
    """Return the tensors of all policies by file name, given those of each policy, in order, by kind of file."""
    return {f"{kind}-{n:03d}": arrays for n, kinds in enumerate(of_policies) for kind, arrays in kinds.items()}


def find_files(tensors: Mapping[str, TensorFile], where: str, num_policies: int) -> Sequence[OfPolicy]:
    """Return the files of each policy, by kind.

    Raises:
        CheckpointError: a file is missing, or there are files of further policies.
    """
    saved, files = StateReader(tensors, where), list[OfPolicy]()
    for number in range(num_policies):
        names = {kind: f"{kind}-{number:03d}" for kind in (*KINDS, *OPTIONAL_KINDS)}
        its = {kind: saved.value(name) for kind, name in names.items() if kind in KINDS or name in saved}
        files.append(its)
    saved.require_names([file.name for its in files for file in its.values()])
    return files


# --- Spaces of policies -----------------------------------------------------------------------------------------------

INTEGERS = tuple(f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64))
DTYPES_OF_BOXES = ("float16", "float32", "float64", *INTEGERS, "bool")

Space = spaces.Space[Any]


def space_to_plain(space: Space) -> State | None:
    """Return a space as plain data, which a store reads; None for other kinds of spaces and for subclasses."""
    kind = type(space).__name__
    if hasattr(space, "to_plain"):  # see `AlgorithmTable.action_form`
        return space.to_plain(space_to_plain)  # type: ignore[no-any-return]
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
