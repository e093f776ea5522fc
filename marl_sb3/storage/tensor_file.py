"""Tensors in a file, in the safetensors format: a length in 8 bytes, a JSON header of that length, then the numbers.

See https://huggingface.co/docs/safetensors. That library is not used because it cannot hash the very bytes that it
returns, and because it accepts names that are there twice and bytes that are neither true nor false. Here dtypes and
shapes are known before any number is read, so that the reader takes only what has the size it expects into memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import psutil

from marl_sb3.errors import CheckpointError, NumericError
from marl_sb3.storage.state import StateReader
from marl_sb3.storage.untrusted import opened, parse_json
from marl_sb3.types import Array

SUFFIX = ".safetensors"
_MAX_HEADER_BYTES = 2**22
_PIECE_BYTES = 2**24  # read, checked and written at a time
_MAX_DIMENSIONS = 32  # of an array, in NumPy 1

_DTYPES = {
    **{f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind in "IU" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class Form(NamedTuple):
    """What a tensor is, without its numbers."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


def form_of(tensors: Mapping[str, Array], name: str) -> Form:
    """What a tensor is; one that is stored is not read."""
    if isinstance(tensors, StoredTensors):
        return tensors.forms[name]
    return Form(tensors[name].dtype, tensors[name].shape)


def copies(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors in memory of their own."""
    if isinstance(tensors, StoredTensors):
        return tensors.load()
    return {name: array.copy() for name, array in tensors.items()}


# --- Writing ---------------------------------------------------------------------------------------------------------


def require_storable(file: str, forms: Mapping[str, Form]) -> None:
    """Refuse tensors that no file of ours can hold, before any time is spent on them.

    Raises:
        CheckpointError: a dtype that the format lacks, or more names than a header has room for.
    """
    for name, form in forms.items():
        if form.dtype.newbyteorder("<") not in _NAMES:
            raise CheckpointError(f"{file}: {name} has dtype {form.dtype}; accepted: {', '.join(map(str, _NAMES))}")
    if len(_header(forms)) > 8 + _MAX_HEADER_BYTES:
        raise CheckpointError(f"{file}: {len(forms)} tensors are more than the header of a file has room for")


def file_size(tensors: Mapping[str, Array]) -> int:
    """The bytes of the file that holds these tensors."""
    forms = {name: form_of(tensors, name) for name in tensors}
    return len(_header(forms)) + sum(form.nbytes for form in forms.values())


def require_finite(file: str, arrays: Mapping[str, Array]) -> None:
    """Refuse to write what is not finite.

    Raises:
        NumericError: with the name of the tensor.
    """
    for name, array in arrays.items():
        if not _is_finite(array):
            raise NumericError(f"{file}: {name} is not finite; no checkpoint is written")


def tensor_bytes(arrays: Mapping[str, Array]) -> Iterator[bytes]:
    """The file that holds these tensors, in pieces of some MiB."""
    piece = bytearray(_header({name: Form(array.dtype, array.shape) for name, array in arrays.items()}))
    for name in _in_order(arrays):
        array = arrays[name]
        numbers = _as_bytes(np.asarray(array, array.dtype.newbyteorder("<"), order="C"))
        for begin in range(0, len(numbers), _PIECE_BYTES):
            piece += numbers[begin : begin + _PIECE_BYTES].data
            if len(piece) >= _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


def _header(forms: Mapping[str, Form]) -> bytes:
    entries, end = {}, 0
    for name in _in_order(forms):
        form = Form(forms[name].dtype.newbyteorder("<"), forms[name].shape)
        offsets = [end, end + form.nbytes]
        entries[name] = {"dtype": _NAMES[form.dtype], "shape": list(form.shape), "data_offsets": offsets}
        end += form.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the numbers begin where any type may
    return len(text).to_bytes(8, "little") + text


def _in_order(tensors: Mapping[str, Form | Array]) -> list[str]:
    """The largest numbers first, so that each begins at a multiple of its size."""
    return sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))


def _as_bytes(array: Array) -> npt.NDArray[np.uint8]:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


def _is_finite(array: Array) -> bool:
    """By extremes, which need no further memory."""
    return array.dtype.kind != "f" or not array.size or bool(np.isfinite((array.min(), array.max())).all())


# --- Reading ---------------------------------------------------------------------------------------------------------


class StoredTensors(Mapping[str, Array]):
    """The tensors in a file. What they are is known; their numbers are read when they are asked for.

    Whoever knows what is to be there compares `forms` first: the file may come from a stranger, and be large.

    Args:
        path: the file.
        size: its bytes, by the manifest.
        sha256: its hash, by the manifest.
        limit: the most bytes that it may have; None: as many as this machine has memory.

    Attributes:
        forms: dtype and shape of each tensor.

    Raises:
        CheckpointError: its header is not that of such a file; from `load` and `verify` too: its numbers are not those
            of the manifest, or not finite.
    """

    def __init__(self, path: Path, size: int, sha256: str, limit: int | None = None) -> None:
        self._path, self._size, self._sha256 = path, size, sha256
        self._limit = psutil.virtual_memory().total if limit is None else limit
        with opened(path, self._limit, size) as file:
            self._header = self._read_header(file)
        self.forms = _forms(path.name, self._header, size)

    def __getitem__(self, name: str) -> Array:
        return self.load([name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.forms)

    def __len__(self) -> int:
        return len(self.forms)

    def __contains__(self, name: object) -> bool:
        return name in self.forms  # a mapping would read it to find out

    def load(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """The numbers of some tensors or of all; the whole file is verified on the way, by the very bytes returned."""
        wanted = {name: np.empty(self.forms[name].shape, self.forms[name].dtype) for name in names or self.forms}
        self._go_through(wanted)
        return wanted

    def verify(self) -> None:
        """Compare the file with the manifest, in little memory."""
        self._go_through({})

    def _read_header(self, file: FileIO) -> bytes:
        begin = _exactly(file, min(8, self._size))
        length = int.from_bytes(begin, "little")
        if length > min(_MAX_HEADER_BYTES, self._size - 8):
            raise CheckpointError(
                f"{self._path.name} is not a valid safetensors file: its header is cut off, or too long"
            )
        return begin + _exactly(file, length)

    def _go_through(self, wanted: Mapping[str, Array]) -> None:
        digest, fault = hashlib.sha256(self._header), ""
        with opened(self._path, self._limit, self._size) as file:
            unchanged = _exactly(file, len(self._header)) == self._header
            buffer = np.empty(min(_PIECE_BYTES, self._size), np.uint8)
            for name, form in self.forms.items():
                for piece in _pieces(wanted.get(name), form, buffer):
                    if not _filled(file, piece.data):
                        raise CheckpointError(f"{self._path.name} has become shorter")
                    digest.update(piece.data)
                    fault = fault or _fault(name, piece, form.dtype)
        if not unchanged or digest.hexdigest() != self._sha256:
            raise CheckpointError(f"{self._path.name} is damaged: its SHA-256 is not that of the manifest")
        if fault:
            raise CheckpointError(f"{self._path.name}: {fault}")


def _exactly(file: FileIO, length: int) -> bytes:
    return file.read(length) or b""


def _filled(file: FileIO, target: memoryview) -> bool:
    """Whether there were bytes enough; a single read may give less than it was asked for."""
    while target:
        count = file.readinto(target)
        if not count:
            return False
        target = target[count:]
    return True


def _pieces(target: Array | None, form: Form, buffer: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    """Where the numbers of a tensor are read to, piece by piece: into itself, or into a buffer that is used again."""
    into = None if target is None else _as_bytes(target)
    for begin in range(0, form.nbytes, _PIECE_BYTES):
        end = min(begin + _PIECE_BYTES, form.nbytes)
        yield buffer[: end - begin] if into is None else into[begin:end]


def _fault(name: str, piece: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> str:
    if not _is_finite(piece.view(dtype)):
        return f"{name[:80]!r} is not finite"
    if dtype.kind == "b" and piece.max(initial=0) > 1:
        return f"{name[:80]!r} holds bytes that are neither true nor false"
    return ""


def _forms(file: str, header: bytes, size: int) -> dict[str, Form]:
    entries = StateReader(parse_json(file, header[8:]), file)
    forms: dict[str, Form] = {}
    end = 0
    for name in entries:
        if name != "__metadata__":
            forms[name] = _form(StateReader(entries.value(name), f"{file}: {name[:80]!r}"), end)
            end += forms[name].nbytes
    if len(header) + end != size:
        raise CheckpointError(f"{file} is not a valid safetensors file: it holds more or less than its tensors")
    return forms


def _form(entry: StateReader, begin: int) -> Form:
    dtype = _DTYPES.get(entry.string("dtype"))
    if dtype is None:
        raise entry.error("dtype", entry.value("dtype"), ", ".join(_DTYPES))
    sizes = StateReader(dict(enumerate(entry.items("shape"))), f"{entry.where}/shape")
    form = Form(dtype, tuple(sizes.integer(number) for number in sizes))
    if entry.items("data_offsets", 2) != [begin, begin + form.nbytes]:
        raise entry.error("data_offsets", entry.value("data_offsets"), f"{begin} and {begin + form.nbytes}")
    try:
        if not form.nbytes:
            np.empty(form.shape, dtype)  # takes no memory, but NumPy has limits to shapes
    except ValueError as error:
        raise CheckpointError(f"{entry.where} has a shape that no array has: {error}") from error
    if len(form.shape) > _MAX_DIMENSIONS:
        raise CheckpointError(f"{entry.where} has a shape that no array has: {len(form.shape)} dimensions")
    return form
