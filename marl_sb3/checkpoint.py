"""Checkpoints on disk: written whole or not at all, verified before anything in them is used.

A checkpoint is a folder `ckpt-<iteration>` with fixed names in it:

    state.json                     everything but arrays; `{"$array": name}` stands for one
    arrays.safetensors             those arrays
    policy-000.safetensors ...     the weights of each policy, in the order of `state.json`
    optimizer-000.safetensors ...  what its optimizer keeps
    manifest.json                  size and SHA-256 of each of the others; what the checkpoint is of

It is written into a temporary folder beside it, every file synced to the disk, the manifest last; then the folder gets
its name. Reading follows no links, unpickles nothing, imports nothing, and hashes the very bytes that it parses.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.errors import CheckpointError, NumericError
from marl_sb3.state import Fields, State
from marl_sb3.types import Array

_log = logging.getLogger(__name__)

Tensors = Mapping[str, Mapping[str, Array]]  # file name without suffix -> tensor name -> array

FORMAT = "marl_sb3 checkpoint 1"

_MANIFEST, _STATE, _ARRAYS = "manifest.json", "state.json", "arrays"
_TENSOR_FILE = re.compile(r"(arrays|policy-[0-9]{3}|optimizer-[0-9]{3})\.safetensors")
_NAME = re.compile(r"ckpt-([0-9]{6,12})")
_TEMPORARY = ".unfinished-"
_ARRAY_KEY = "$array"

# Larger files are refused before they are read: a stranger's checkpoint is not to fill the memory.
_MAX_BYTES = {_MANIFEST: 2**20, _STATE: 2**22}
_MAX_TENSOR_BYTES = 384 * 2**20  # of all files together: 33 million weights with what Adam keeps
_MAX_HEADER_BYTES = 2**22  # of a file of tensors: what they are
_MAX_BRACKETS, _MAX_DEPTH = 2**18, 100  # of a tree: `[]` is two bytes in a file, and sixty in the memory
_MAX_DIGITS = 4300  # of a whole number; converting them takes the square of their number

_DTYPES = {
    **{f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind in "IU" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    "BOOL": np.dtype(np.bool_),
}


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds, verified.

    Attributes:
        name: of its folder.
        about: what it is of: iteration, env steps, score, versions.
        state: everything but weights and optimizers.
        tensors: by file, those.
    """

    name: str
    about: Fields
    state: State
    tensors: Tensors


# --- Writing ---------------------------------------------------------------------------------------------------------


def write_checkpoint(folder: Path, state: State, tensors: Tensors, about: Mapping[str, Any]) -> int:
    """Write a checkpoint; `folder` appears whole or not at all.

    Args:
        folder: its name to be; what stands there already is replaced, at the end.
        state: a tree of plain data and arrays.
        tensors: weights and optimizers by file name.
        about: plain data for the manifest.

    Returns:
        Its size in bytes.

    Raises:
        NumericError: an array is not finite: such a checkpoint is never written.
        OSError: it is too large to be read back, or the disk is full or failing; nothing unfinished is left behind.
    """
    plain, arrays = _without_arrays(state)
    contents = {_STATE: _json(plain)}
    for name, group in {_ARRAYS: arrays, **tensors}.items():
        contents[f"{name}.safetensors"] = _to_safetensors(name, group)
    files = {name: {"size": len(data), "sha256": _sha256(data)} for name, data in contents.items()}
    contents[_MANIFEST] = _json({"format": FORMAT, "about": about, "files": files})
    _require_readable(folder, contents)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f"{_TEMPORARY}{folder.name}-{secrets.token_hex(4)}")
    try:
        os.mkdir(temporary)
        for name, data in contents.items():
            _write_file(temporary / name, data)
        _sync_folder(temporary)
        _put_in_place(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return sum(map(len, contents.values()))


def _require_readable(folder: Path, contents: Mapping[str, bytes]) -> None:
    too_large = [
        name
        for name, data in contents.items()
        if len(data) > _MAX_BYTES.get(name, _MAX_TENSOR_BYTES)
        or _header_end(name, data) is None
        or (name == _STATE and _opening_brackets(data) > _MAX_BRACKETS)
    ]
    if too_large or sum(map(len, contents.values())) > _MAX_TENSOR_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(folder.joinpath(*too_large[:1])))


def _header_end(name: str, data: bytes) -> int | None:
    """Where the header of a file of tensors ends; None if it is too long, or there is none."""
    end = 8 + int.from_bytes(data[:8], "little") if name.endswith(".safetensors") else 0
    return None if end > min(len(data), 8 + _MAX_HEADER_BYTES) else end


def _opening_brackets(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def _write_file(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with naming(path):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # where folders cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Give errors the name of a file, which the system does not give them once it is open."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _put_in_place(temporary: Path, folder: Path) -> None:
    former = None
    if folder.exists():  # a damaged one, or one of a run that has been resumed from before it
        former = folder.with_name(f"{_TEMPORARY}former-{secrets.token_hex(4)}")
        os.rename(folder, former)
    try:
        os.rename(temporary, folder)
    except BaseException:
        if former is not None:
            os.rename(former, folder)
        raise
    try:
        _sync_folder(folder.parent)
    finally:
        if former is not None:
            shutil.rmtree(former, ignore_errors=True)


def _json(tree: Any) -> bytes:
    return json.dumps(tree, allow_nan=False, separators=(",", ":")).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _without_arrays(state: State) -> tuple[Any, dict[str, Array]]:
    """The tree with references in place of its arrays, and the arrays by their paths."""
    arrays: dict[str, Array] = {}

    def plain(node: Any, path: str) -> Any:
        if isinstance(node, np.ndarray):
            while path in arrays:  # {"a/b": ...} beside {"a": {"b": ...}}
                path = f"{path}'"
            arrays[path] = node
            return {_ARRAY_KEY: path}
        if isinstance(node, Mapping):
            return {_escaped(str(key)): plain(value, f"{path}/{key}") for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [plain(value, f"{path}/{index}") for index, value in enumerate(node)]
        return node

    return plain(state, ""), arrays


def _escaped(key: str) -> str:
    """A key that is not taken for a reference to an array: an agent may be called `$array`."""
    return f"${key}" if key.startswith("$") else key


def _to_safetensors(file: str, arrays: Mapping[str, Array]) -> bytes:
    from safetensors.numpy import save

    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise NumericError(f"{file}: {name} is not finite; no checkpoint is written")
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()})


# --- Reading ---------------------------------------------------------------------------------------------------------


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises:
        CheckpointError: it is not one, or is damaged; the message names the file and what is wrong with it.
    """
    try:
        return _read(folder)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise CheckpointError(f"{folder}: nested too deep, or too large") from error


def _read(folder: Path) -> Checkpoint:
    names = _file_names(folder)
    manifest = Fields(_parse_json(_MANIFEST, _read_file(folder, _MANIFEST)), _MANIFEST)
    if manifest.value("format") != FORMAT:
        raise manifest.error("format", manifest.value("format"), FORMAT)
    listed = manifest.fields("files")
    listed.require_names([name for name in names if name != _MANIFEST])
    contents: dict[str, bytes] = {}
    for name in listed:
        room = _MAX_TENSOR_BYTES - sum(len(data) for read, data in contents.items() if read != _STATE)
        contents[name] = _verified(folder, name, listed.fields(name), room)
    tensors = {
        name.removesuffix(".safetensors"): _parse_safetensors(name, data)
        for name, data in contents.items()
        if name != _STATE
    }
    state = _parse_json(_STATE, contents[_STATE], tensors.pop(_ARRAYS))
    if not isinstance(state, dict):
        raise CheckpointError(f"{_STATE} is not a mapping")
    return Checkpoint(folder.name, manifest.fields("about"), state, tensors)


def _file_names(folder: Path) -> list[str]:
    """The names in the folder: those of a checkpoint, and no others."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise CheckpointError("not a folder")
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}") from error
    for name in names:
        if name not in (_MANIFEST, _STATE) and not _TENSOR_FILE.fullmatch(name):
            raise CheckpointError(f"{name!r} does not belong into a checkpoint")
    for name in (_MANIFEST, _STATE, f"{_ARRAYS}.safetensors"):
        if name not in names:
            raise CheckpointError(f"{name} is missing")
    return names


def _read_file(folder: Path, name: str, room: int = 0, size: int | None = None) -> bytes:
    """The bytes of a file.

    Args:
        folder: where it is.
        name: its name.
        room: how many there may be in a file of tensors.
        size: how many there are, by the manifest.

    Raises:
        CheckpointError: it is no regular file, or has more or other bytes.
    """
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        why = "a link, which is not followed" if error.errno == errno.ELOOP else str(error.strerror)
        raise CheckpointError(f"{name} cannot be read: {why}") from error
    try:
        status = os.fstat(descriptor)
        limit = _MAX_BYTES.get(name, room)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise CheckpointError(f"{name} is not a file of at most {limit} bytes")
        if size not in (None, status.st_size):
            raise CheckpointError(f"{name} has {status.st_size} bytes; the manifest says {size}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _verified(folder: Path, name: str, entry: Fields, room: int) -> bytes:
    data = _read_file(folder, name, room, entry.whole("size"))
    if entry.text("sha256") != _sha256(data):
        raise CheckpointError(f"{name} is damaged: its SHA-256 is not that of the manifest")
    return data


def _parse_json(name: str, data: bytes, arrays: Mapping[str, Array] | None = None) -> Any:
    """The tree in a file; where it refers to one of `arrays`, that stands in its place."""
    if _opening_brackets(data) > _MAX_BRACKETS:
        raise CheckpointError(f"{name} has more than {_MAX_BRACKETS} lists and mappings")
    hook = _mapping if arrays is None else lambda pairs: _array_or_mapping(_mapping(pairs), arrays)
    try:
        tree = json.loads(data.decode(), parse_int=_whole, object_pairs_hook=hook)
    except ValueError as error:  # wrong JSON, wrong UTF-8, a number of too many digits
        raise CheckpointError(f"{name} is not valid JSON: {error}") from error
    _require_sound(name, tree)
    return tree


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of more than {_MAX_DIGITS} digits")
    return int(digits)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a name is there twice")
    return mapping


def _array_or_mapping(mapping: dict[str, Any], arrays: Mapping[str, Array]) -> Any:
    if _ARRAY_KEY not in mapping:
        return _mapping([(key.removeprefix("$"), value) for key, value in mapping.items()])
    path = mapping[_ARRAY_KEY]
    if len(mapping) != 1 or not isinstance(path, str) or path not in arrays:
        raise CheckpointError(f"{_STATE} refers to an array that {_ARRAYS}.safetensors does not hold")
    return arrays[path]


def _require_sound(name: str, tree: Any) -> None:
    """Refuse numbers that are not finite, and what is so deep that it cannot be gone through by recursion."""
    level = [tree]
    for _ in range(_MAX_DEPTH):
        if any(isinstance(node, float) and not math.isfinite(node) for node in level):
            raise CheckpointError(f"{name} holds a number that is not finite")
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return
    raise CheckpointError(f"{name} is nested too deep")


def _parse_safetensors(name: str, data: bytes) -> dict[str, Array]:
    """A length in 8 bytes, a JSON header of that length, then the numbers, one tensor's behind the other's.

    See https://huggingface.co/docs/safetensors. Its own reader copies every tensor, and accepts what we do not: names
    that are there twice, bytes that are neither true nor false.
    """
    start = _header_end(name, data)
    if start is None:
        raise CheckpointError(f"{name} is not a valid safetensors file: its header is cut off, or too long")
    header, numbers = Fields(_parse_json(name, data[8:start]), name), memoryview(data)[start:]
    arrays: dict[str, Array] = {}
    end = 0
    for key in header:
        if key != "__metadata__":
            arrays[key] = _tensor(Fields(header.value(key), f"{name}: {key[:80]!r}"), numbers, end)
            end += arrays[key].nbytes
    if end != len(numbers):
        raise CheckpointError(f"{name} is not a valid safetensors file: it holds more than its tensors")
    return arrays


def _tensor(entry: Fields, numbers: memoryview, begin: int) -> Array:
    """A view of the numbers of the tensor that begins there."""
    dtype = _DTYPES.get(entry.text("dtype"))
    if dtype is None:
        raise entry.error("dtype", entry.value("dtype"), ", ".join(_DTYPES))
    sizes = Fields(dict(enumerate(entry.items("shape"))), f"{entry.where}/shape")
    try:
        array: Array = np.ndarray([sizes.whole(number) for number in sizes], dtype, numbers, begin)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{entry.where} does not fit into its file: {error}") from error
    if entry.items("data_offsets", 2) != [begin, begin + array.nbytes]:
        raise entry.error("data_offsets", entry.value("data_offsets"), f"{begin} and {begin + array.nbytes}")
    # By extremes, which need no further memory.
    if dtype.kind == "f" and array.size and not np.isfinite((array.min(), array.max())).all():
        raise CheckpointError(f"{entry.where} is not finite")
    if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
        raise CheckpointError(f"{entry.where} holds bytes that are neither true nor false")
    return array


# --- The checkpoints of a run ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """How good a checkpoint is: the value of a metric.

    Attributes:
        metric: its flat name.
        value: None where it had none.
        higher_is_better: which way round.
    """

    metric: str
    value: float | None
    higher_is_better: bool

    def to_state(self) -> State:
        """As in the manifest."""
        return {"metric": self.metric, "value": self.value, "higher_is_better": self.higher_is_better}


class CheckpointFolder:
    """The checkpoints of a run: the newest ones, and the best.

    Args:
        path: the folder that they are in; made when it is needed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Those there are, damaged ones too, oldest first."""
        with suppress(OSError):
            found = [entry.name for entry in os.scandir(self.path) if _NAME.fullmatch(entry.name)]
            return sorted(found, key=_iteration)
        return []

    def save(self, iteration: int, state: State, tensors: Tensors, about: Mapping[str, Any], keep: int) -> str:
        """Write a checkpoint, then remove those that are neither among the newest `keep` nor the best.

        Returns:
            Its name.

        Raises:
            NumericError: an array is not finite.
            OSError: the disk is full or failing; the earlier checkpoints are as they were.
        """
        self.remove_unfinished()
        name = f"ckpt-{iteration:06d}"
        write_checkpoint(self.path / name, state, tensors, about)
        # Later ones are damaged, or the run would have gone on from them: they must not push out this one.
        earlier, best = [each for each in self.names() if _iteration(each) <= iteration], self._best_by_manifest()
        for old in earlier[:-keep]:
            if old != best:
                self._remove(old)
        return name

    def _remove(self, name: str) -> None:
        """Out of sight first: a process that is killed here leaves no half of a checkpoint."""
        doomed = self.path / f"{_TEMPORARY}former-{secrets.token_hex(4)}"
        with suppress(OSError):
            os.rename(self.path / name, doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def remove_unfinished(self) -> None:
        """Remove what a killed process has left behind; nobody else may be writing."""
        with suppress(OSError):
            for entry in list(os.scandir(self.path)):
                if entry.name.startswith(_TEMPORARY):
                    shutil.rmtree(entry.path, ignore_errors=True)

    def load(self, which: str = "latest") -> Checkpoint:
        """The checkpoint that is asked for; a damaged one is passed over, with a warning, for the next.

        Args:
            which: `latest`, `best`, or the number of an iteration, which alone is not passed over.

        Raises:
            CheckpointError: there is none.
        """
        if which not in ("latest", "best"):
            return read_checkpoint(self.path / self._by_number(which))
        for name in self._candidates(which):
            try:
                return read_checkpoint(self.path / name)
            except CheckpointError as error:
                _log.warning("%s; passed over", error)
        why = "" if self.names() else ": the run ended before its first"
        again = f"train --hparams {self.path.parent / 'config.yaml'} starts it anew"
        raise CheckpointError(f"{self.path} holds no valid checkpoint{why}; {again}")

    def _by_number(self, which: str) -> str:
        for name in self.names():
            if which == name or (which.isdecimal() and len(which) < 13 and int(which) == _iteration(name)):
                return name
        there = ", ".join(str(_iteration(name)) for name in self.names()) or "none"
        raise CheckpointError(f"{self.path} has no checkpoint {which!r}; accepted: best, latest, or one of {there}")

    def _candidates(self, which: str) -> Iterable[str]:
        newest_first = self.names()[::-1]
        if which == "latest":
            return newest_first
        scored = [(value, _iteration(name), name) for name, value in self._scores()]
        best_first = [name for _, _, name in sorted(scored, reverse=True)]
        return [*best_first, *(name for name in newest_first if name not in best_first)]

    def _best_by_manifest(self) -> str | None:
        return max(self._scores(), key=lambda scored: (scored[1], _iteration(scored[0])), default=(None, 0.0))[0]

    def _scores(self) -> list[tuple[str, float]]:
        """Each checkpoint that has a score, by its manifest alone; higher is better, whatever the metric."""
        scores = []
        for name in self.names():
            with suppress(CheckpointError, RecursionError):
                manifest = Fields(_parse_json(_MANIFEST, _read_file(self.path / name, _MANIFEST)), _MANIFEST)
                score = manifest.fields("about").fields("score")
                if score.value("value") is not None:
                    sign = 1.0 if score.switch("higher_is_better") else -1.0
                    scores.append((name, sign * score.number("value")))
        return scores


def _iteration(name: str) -> int:
    return int(name.removeprefix("ckpt-"))
