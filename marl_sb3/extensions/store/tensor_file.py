"""Read and write safetensors files by the safetensors library, with the checks that untrusted files need.

The library checks the format. This module checks the rest: the SHA-256, finite numbers, valid booleans, and shapes that
NumPy can hold. The library's `save_file` is not used: it creates files that only their owner may read, and reports
errors of the disk as text without an error number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from io import FileIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors import SafetensorError, safe_open

from marl_sb3.core.state.checkpoint import DTYPES
from marl_sb3.core.state.state import Form, TensorFile, is_finite
from marl_sb3.errors import CheckpointError
from marl_sb3.files.regular import opened
from marl_sb3.types import Array

SUFFIX = ".safetensors"
_PIECE_BYTES = 2**24  # tensors are verified in pieces of this size
_MEMORY_BYTES = psutil.virtual_memory().total  # of this machine: a larger file is not read
_MAX_DIMENSIONS = 32  # of an array, in NumPy 1
_MOST_SHOWN = 300  # characters of the reason why a file is refused

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


# --- Writing ---------------------------------------------------------------------------------------------------------


def tensor_chunks(tensors: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """The content of the file that holds these tensors, in pieces: the numbers of a large replay buffer are not copied.

    The format is that of https://huggingface.co/docs/safetensors: the length of the header, the header, the numbers.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))  # each is aligned to its dtype
    header, end = {}, 0
    for name in order:
        array, begin = tensors[name], end
        end += array.nbytes
        dtype = _DTYPE_NAMES[array.dtype.newbyteorder("=")]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        array = np.asarray(tensors[name], order="C")
        numbers = array.astype(array.dtype.newbyteorder("<"), copy=False).reshape(-1).view(np.uint8)
        for begin in range(0, len(numbers), _PIECE_BYTES):
            yield numbers[begin : begin + _PIECE_BYTES].data


# --- Reading ---------------------------------------------------------------------------------------------------------


class StoredTensors(TensorFile):
    """The tensors of a file. `forms` are read at once, a tensor when it is accessed.

    The file is untrusted and may be large: compare `forms` with what is expected before reading numbers.

    Args:
        path: the file.
        size: its bytes, by the manifest.
        sha256: its hash, by the manifest.

    Raises:
        CheckpointError: it is not a valid safetensors file. `load` and `verify` raise it too, if the hash differs or a
            number is not valid.
    """

    def __init__(self, path: Path, size: int, sha256: str) -> None:
        self.name, self._path, self._size, self._sha256 = path.stem, path, size, sha256
        with self._opened() as file:  # refuses links, pipes and files of another size
            begin = 8 + int.from_bytes(file.read(8), "little")
            try:
                # "pread" and not "mmap": a file that becomes shorter is then an error and not the end of the process.
                with safe_open(path, framework="np", backend="pread") as header:
                    self.forms = {name: self._form(name, header.get_slice(name)) for name in header.offset_keys()}
            except SafetensorError as error:
                raise CheckpointError(
                    f"{path.name} is not a valid safetensors file: {str(error)[:_MOST_SHOWN]}"
                ) from error
        # One after the other behind the header, as the library has checked.
        ends = accumulate((form.nbytes for form in self.forms.values()), initial=begin)
        self._begins = dict(zip(self.forms, ends, strict=False))

    def load(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """See `TensorFile.load`; the hash of the file is verified first."""
        self._verify_hash()
        loaded = {}
        with self._opened() as file:
            for name in names or self.forms:
                file.seek(self._begins[name])
                loaded[name] = self._read(file, self.forms[name])
                self._require_valid(name, loaded[name])
        return loaded

    def pieces(self, name: str) -> Iterator[tuple[int, Array]]:
        """See `TensorFile.pieces`. The file is not verified again, see `verify`, nor read as a whole by the library."""
        form = self.forms[name]
        lines = form.shape[0] if form.nbytes > _PIECE_BYTES else 1
        per_piece = max(1, _PIECE_BYTES * lines // max(1, form.nbytes))
        with self._opened() as file:
            file.seek(self._begins[name])
            for begin in range(0, lines, per_piece):
                shape = (min(per_piece, lines - begin), *form.shape[1:]) if lines > 1 else form.shape
                yield begin, self._read(file, Form(form.dtype, shape))

    def verify(self) -> None:
        """Check the hash and all numbers, without reading a whole tensor into memory."""
        self._verify_hash()
        for name in self.forms:
            for _, piece in self.pieces(name):
                self._require_valid(name, piece)

    def _read(self, file: FileIO, form: Form) -> Array:
        """The next numbers of the file."""
        data = np.fromfile(file, np.uint8, form.nbytes)
        if len(data) < form.nbytes:
            raise CheckpointError(f"{self._path.name} is damaged: it became shorter while it was read")
        return data.view(form.dtype).reshape(form.shape)

    def _opened(self) -> AbstractContextManager[FileIO]:
        return opened(self._path, _MEMORY_BYTES, self._size)

    def _verify_hash(self) -> None:
        with self._opened() as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self._sha256:
                raise CheckpointError(f"{self._path.name} is damaged: its SHA-256 is not that of the manifest")

    def _form(self, name: str, tensor: Any) -> Form:
        where = f"{self._path.name}: {name[:80]!r}"
        dtype = DTYPES.get(tensor.get_dtype())
        if dtype is None:
            raise CheckpointError(f"{where} has dtype {tensor.get_dtype()}; accepted: {', '.join(DTYPES)}")
        form = Form(dtype, tuple(tensor.get_shape()))
        if len(form.shape) > _MAX_DIMENSIONS:
            raise CheckpointError(f"{where} has {len(form.shape)} dimensions; accepted: up to {_MAX_DIMENSIONS}")
        try:
            if not form.nbytes:
                np.empty(form.shape, dtype)  # takes no memory, but NumPy limits shapes
        except ValueError as error:
            raise CheckpointError(f"{where} has a shape that no array has: {error}") from error
        return form

    def _require_valid(self, name: str, array: Array) -> None:
        fault = None
        if not is_finite(array):
            fault = "is not finite"
        elif array.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
            fault = "holds bytes that are neither true nor false"
        if fault:
            raise CheckpointError(f"{self._path.name}: {name[:80]!r} {fault}")
