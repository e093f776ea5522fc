"""One checkpoint on disk: written atomically, verified before anything in it is used.

A checkpoint is a folder `ckpt-<iteration>` with these files:

    state.json                     the state without its arrays; `{"$array": name}` refers to an array
    arrays.safetensors             the arrays of the state
    policy-000.safetensors ...     the weights of each policy, in the order of `state.json`
    optimizer-000.safetensors ...  the state of its optimizers
    replay-000.safetensors ...     its replay buffer, if it has one
    manifest.json                  size and SHA-256 of all other files; a description of the checkpoint
    model.sig                      the signature of all others, if somebody has signed it; see `files.signed`

It is written to a temporary folder, and every file is synced to the disk, the manifest last; then the folder is
renamed. Reading follows no links, unpickles nothing, imports nothing, and verifies the hash of each file.
Weights and optimizers are verified in pieces, and read into memory only when they are asked for: see `StoredTensors`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.core.state.checkpoint import KINDS, OPTIONAL_KINDS, Checkpoint, Tensors, require_finite, require_storable
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.tensor_file import SUFFIX, StoredTensors, tensor_chunks
from marl_sb3.files.atomic import replaced_folder, with_filename
from marl_sb3.files.regular import read_bytes
from marl_sb3.files.signed import SIGNATURE
from marl_sb3.systems import AS_BYTES, sync_open
from marl_sb3.types import Array

FORMAT = "marl_sb3 checkpoint 7"
_ANY_FORMAT = "marl_sb3 checkpoint "

MANIFEST, _STATE, _ARRAYS = "manifest.json", "state.json", "arrays"

_TENSOR_FILE = re.compile(rf"({_ARRAYS}|({'|'.join((*KINDS, *OPTIONAL_KINDS))})-[0-9]{{3,6}})\.safetensors")
_ARRAY_KEY = "$array"

_MAX_JSON_BYTES = 2**28  # a tree takes many times as much memory; files of tensors may be as large as the memory


# --- Writing ---------------------------------------------------------------------------------------------------------


def write_checkpoint(folder: Path, state: State, tensors: Tensors, about: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically.

    Args:
        folder: the folder to make or replace.
        state: a tree of plain data and arrays.
        tensors: weights and optimizer state, by file name.
        about: the description for the manifest, plain data.

    Raises:
        NumericError: an array is not finite: such a checkpoint is never written.
        CheckpointError: a tensor has a dtype that safetensors files cannot hold.
        OSError: the state is too large to be read again, or the disk is full or failing; temporary files are removed.
    """
    text, arrays = state_to_json(state)
    if len(text) > _MAX_JSON_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(folder / _STATE))
    groups = {_ARRAYS: arrays, **tensors}
    for name, group in groups.items():
        require_storable(name, group)
        require_finite(name, group)
    with replaced_folder(folder, sync=True) as fresh:
        files = {_STATE: _write_file(fresh / _STATE, [text])}
        for name, group in groups.items():
            file, chunks = f"{name}{SUFFIX}", tensor_chunks(group)
            # The arrays are many and small: they are written at once.
            files[file] = _write_file(fresh / file, [b"".join(chunks)] if group is arrays else chunks)
        _write_file(fresh / MANIFEST, [_json({"format": FORMAT, "about": about, "files": files})])


def _write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write a file to the disk; returns its entry in the manifest."""
    size, digest = 0, hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | AS_BYTES, 0o666)
    try:
        with with_filename(path):
            for chunk in chunks:
                digest.update(chunk)
                size += len(chunk)
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            sync_open(descriptor)
    finally:
        os.close(descriptor)
    return {"size": size, "sha256": digest.hexdigest()}


def _json(tree: Any) -> bytes:
    return json.dumps(tree, allow_nan=False, separators=(",", ":")).encode()


def state_to_json(state: State) -> tuple[bytes, dict[str, Array]]:
    """Return a state as JSON with references in the place of its arrays, and the arrays by their paths."""
    arrays: dict[str, Array] = {}

    def plain(node: Any, path: str) -> Any:
        if isinstance(node, np.ndarray):
            while path in arrays:  # {"a/b": ...} and {"a": {"b": ...}} have the same path
                path = f"{path}'"
            arrays[path] = node
            return {_ARRAY_KEY: path}
        if isinstance(node, Mapping):
            # A key that looks like a reference is escaped: an agent may be called `$array`.
            keys = {key: f"${key}" if str(key).startswith("$") else str(key) for key in node}
            return {keys[key]: plain(value, f"{path}/{key}") for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [plain(value, f"{path}/{index}") for index, value in enumerate(node)]
        return node

    return _json(plain(state, "")), arrays


# --- Reading ---------------------------------------------------------------------------------------------------------


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises:
        CheckpointError: it is not a checkpoint, or is damaged; names the file and what is wrong with it.
    """
    try:
        return _read(folder)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise CheckpointError(f"{folder}: nested too deep, or too large") from error


def _read(folder: Path) -> Checkpoint:
    names = _file_names(folder)
    manifest = read_manifest(folder)
    listed = manifest.fields("files")
    listed.require_names([name for name in names if name not in (MANIFEST, SIGNATURE)])
    tensors = {}
    for name in listed:
        if name != _STATE:
            entry = listed.fields(name)
            stored = StoredTensors(folder / name, entry.integer("size"), entry.string("sha256"))
            tensors[name.removesuffix(SUFFIX)] = stored
    entry, arrays = listed.fields(_STATE), tensors.pop(_ARRAYS).load()
    data = read_bytes(folder / _STATE, _MAX_JSON_BYTES, entry.integer("size"))
    if entry.string("sha256") != hashlib.sha256(data).hexdigest():
        raise CheckpointError(f"{_STATE} is damaged: its SHA-256 is not that of the manifest")
    state = state_from_json(data, arrays)
    for stored in tensors.values():
        stored.verify()
    return Checkpoint(folder, manifest.fields("about"), state, tensors)


def read_manifest(folder: Path) -> StateReader:
    """Read the manifest of a checkpoint, and no other file.

    Raises:
        CheckpointError: it is not a manifest, or has the format of another version.
    """
    data = read_bytes(folder / MANIFEST, _MAX_JSON_BYTES)
    manifest = StateReader(parse_json(MANIFEST, data), MANIFEST)
    found = manifest.value("format")
    if isinstance(found, str) and found != FORMAT and found.startswith(_ANY_FORMAT):
        raise CheckpointError(
            f"{MANIFEST}: {found[:60]!r} is the format of another version of marl_sb3; this one reads {FORMAT!r}: use "
            "the version that wrote it, or train anew"
        )
    if found != FORMAT:
        raise manifest.error("format", found, FORMAT)
    return manifest


def state_from_json(data: bytes, arrays: Mapping[str, Array]) -> State:
    """Read the state that `state_to_json` returned.

    Raises:
        CheckpointError: it is not valid, or refers to an array that is not there.
    """
    state = parse_json(_STATE, data, arrays)
    if not isinstance(state, dict):
        raise CheckpointError(f"{_STATE} is not a mapping")
    return state


def _file_names(folder: Path) -> list[str]:
    """The names of the files of a checkpoint; other names are refused."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise CheckpointError("not a folder")
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}") from error
    for name in names:
        if name not in (MANIFEST, _STATE, SIGNATURE) and not _TENSOR_FILE.fullmatch(name):
            raise CheckpointError(f"unexpected file {name!r} in checkpoint")
    for name in (MANIFEST, _STATE, f"{_ARRAYS}.safetensors"):
        if name not in names:
            raise CheckpointError(f"{name} is missing")
    return names


# --- JSON ------------------------------------------------------------------------------------------------------------

_MAX_DEPTH = 100  # of a tree: functions that walk through it call themselves


def parse_json(name: str, data: bytes, arrays: Mapping[str, Array] | None = None) -> Any:
    """Parse JSON.

    Args:
        arrays: those that it refers to, see `state_to_json`; None: it refers to none.

    Raises:
        CheckpointError: it is not valid JSON, or is too deep, or has duplicate names or numbers that are not finite; or
            it refers to an array that is not there.
    """

    def mapping(pairs: list[tuple[str, Any]]) -> Any:
        node = dict(pairs)
        if arrays is not None and _ARRAY_KEY in node:
            path = node[_ARRAY_KEY]
            if len(pairs) != 1 or not isinstance(path, str) or path not in arrays:
                raise CheckpointError(f"{name} refers to an array that {_ARRAYS}.safetensors does not hold")
            return arrays[path]
        if arrays is not None:
            node = {key.removeprefix("$"): value for key, value in pairs}
        if len(node) < len(pairs):
            raise ValueError("duplicate name")
        return node

    try:
        tree = json.loads(data.decode(), object_pairs_hook=mapping)
    except ValueError as error:  # invalid JSON or UTF-8, or a number with too many digits
        raise CheckpointError(f"{name} is not valid JSON: {error}") from error
    level = [tree]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, float) and not math.isfinite(node):
                raise CheckpointError(f"{name} holds a number that is not finite")
            if isinstance(node, (dict, list)):
                inner.extend(node.values() if isinstance(node, dict) else node)
        if not inner:
            return tree
        level = inner
    raise CheckpointError(f"{name} is nested too deep")
