"""Checkpoints on disk: written whole or not at all, verified before anything in them is used.

A checkpoint is a folder `ckpt-<iteration>` with fixed names in it:

    state.json                     everything but arrays; `{"$array": name}` stands for one
    arrays.safetensors             those arrays
    policy-000.safetensors ...     the weights of each policy, in the order of `state.json`
    optimizer-000.safetensors ...  what its optimizer keeps
    manifest.json                  size and SHA-256 of each of the others; what the checkpoint is of

It is written into a temporary folder beside it, every file synced to the disk, the manifest last; then the folder gets
its name. Reading follows no links, unpickles nothing, imports nothing, and hashes the very bytes that it parses.
Weights and optimizers are verified in pieces, and taken into memory only when they are asked for: see `StoredTensors`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
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

from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.state import Fields, State
from marl_sb3.tensor_file import (
    SUFFIX,
    StoredTensors,
    file_size,
    form_of,
    require_finite,
    require_storable,
    tensor_bytes,
)
from marl_sb3.types import Array
from marl_sb3.untrusted import MAX_BRACKETS, opening_brackets, parse_json, read_bytes, unique

_log = logging.getLogger(__name__)

Tensors = Mapping[str, Mapping[str, Array]]  # file name without suffix -> tensor name -> array

FORMAT = "marl_sb3 checkpoint 1"

_MANIFEST, _STATE, _ARRAYS = "manifest.json", "state.json", "arrays"
_TENSOR_FILE = re.compile(r"(arrays|policy-[0-9]{3,6}|optimizer-[0-9]{3,6})\.safetensors")
_NAME = re.compile(r"ckpt-([0-9]{6,12})")
_TEMPORARY = ".unfinished-"
_ARRAY_KEY = "$array"

# Larger files are refused before they are read: a stranger's checkpoint is not to fill the memory. Files of weights and
# optimizers have no limit of this kind: those who read them know what the policies, as they are built, have room for.
_MAX_BYTES = {_MANIFEST: 2**22, _STATE: 2**23}
_MAX_ARRAY_BYTES = 384 * 2**20  # of the state: running episodes, above all


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds, verified.

    Attributes:
        name: of its folder.
        about: what it is of: iteration, env steps, score, versions.
        state: everything but weights and optimizers.
        tensors: by file, those; as it is read from a folder, `StoredTensors`.
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
        CheckpointError: a tensor has a dtype that no file of ours holds.
        OSError: the state is too large to be read back, or the disk is full or failing; nothing unfinished is left
            behind.
    """
    plain, arrays = _without_arrays(state)
    groups = {_ARRAYS: arrays, **{name: dict(group) for name, group in tensors.items()}}
    for name, group in groups.items():
        require_storable(name, {key: form_of(group, key) for key in group})
        require_finite(name, group)
    contents = {_STATE: _json(plain)}
    _require_readable(folder, contents, arrays)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f"{_TEMPORARY}{folder.name}-{secrets.token_hex(4)}")
    try:
        os.mkdir(temporary)
        files = {name: _write_file(temporary / name, [data]) for name, data in contents.items()}
        for name, group in groups.items():
            files[_file_of(name)] = _write_file(temporary / _file_of(name), tensor_bytes(group))
        manifest = _json({"format": FORMAT, "about": about, "files": files})
        _require_readable(folder, {**contents, _MANIFEST: manifest}, arrays)
        _write_file(temporary / _MANIFEST, [manifest])
        _sync_folder(temporary)
        _put_in_place(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return len(manifest) + sum(int(entry["size"]) for entry in files.values())


def _require_readable(folder: Path, contents: Mapping[str, bytes], arrays: Mapping[str, Array]) -> None:
    """Refuse to write what would be refused when it is read."""
    too_large = [name for name, data in contents.items() if len(data) > _MAX_BYTES[name]]
    if opening_brackets(contents[_STATE]) > MAX_BRACKETS:
        too_large.append(_STATE)
    if file_size(arrays) > _MAX_ARRAY_BYTES:
        too_large.append(_file_of(_ARRAYS))
    if too_large:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(folder / too_large[0]))


def _file_of(name: str) -> str:
    return f"{name}{SUFFIX}"


def _write_file(path: Path, pieces: Iterable[bytes]) -> dict[str, Any]:
    """Write a file, and return its entry in the manifest."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with with_filename(path):
            for piece in pieces:
                digest.update(piece)
                size += len(piece)
                rest = memoryview(piece)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return {"size": size, "sha256": digest.hexdigest()}


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # where folders cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with with_filename(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def with_filename(path: str | Path) -> Iterator[None]:
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
    manifest = _read_manifest(folder)
    listed = manifest.fields("files")
    listed.require_names([name for name in names if name != _MANIFEST])
    tensors = {
        name.removesuffix(SUFFIX): _stored(folder / name, listed.fields(name)) for name in listed if name != _STATE
    }
    state = _read_state(folder, listed.fields(_STATE), tensors.pop(_ARRAYS).load())
    for stored in tensors.values():
        stored.verify()
    return Checkpoint(folder.name, manifest.fields("about"), state, tensors)


def _read_manifest(folder: Path) -> Fields:
    data = read_bytes(folder / _MANIFEST, _MAX_BYTES[_MANIFEST])
    manifest = Fields(parse_json(_MANIFEST, data), _MANIFEST)
    if manifest.value("format") != FORMAT:
        raise manifest.error("format", manifest.value("format"), FORMAT)
    return manifest


def _stored(path: Path, entry: Fields) -> StoredTensors:
    """The tensors of a file, none of them read yet."""
    limit = _MAX_ARRAY_BYTES if path.name == _file_of(_ARRAYS) else None
    return StoredTensors(path, entry.whole("size"), entry.text("sha256"), limit)


def _read_state(folder: Path, entry: Fields, arrays: Mapping[str, Array]) -> State:
    data = read_bytes(folder / _STATE, _MAX_BYTES[_STATE], entry.whole("size"))
    if entry.text("sha256") != hashlib.sha256(data).hexdigest():
        raise CheckpointError(f"{_STATE} is damaged: its SHA-256 is not that of the manifest")
    state = parse_json(_STATE, data, lambda mapping: _array_or_mapping(mapping, arrays))
    if not isinstance(state, dict):
        raise CheckpointError(f"{_STATE} is not a mapping")
    return state


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


def _array_or_mapping(mapping: dict[str, Any], arrays: Mapping[str, Array]) -> Any:
    if _ARRAY_KEY not in mapping:
        return unique([(key.removeprefix("$"), value) for key, value in mapping.items()])
    path = mapping[_ARRAY_KEY]
    if len(mapping) != 1 or not isinstance(path, str) or path not in arrays:
        raise CheckpointError(f"{_STATE} refers to an array that {_ARRAYS}.safetensors does not hold")
    return arrays[path]


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
        earlier, best = [each for each in self.names() if _iteration(each) <= iteration], self.best()
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

    def best(self) -> str | None:
        """The name of the best one, by the manifests alone; None if none has a score."""
        return max(self._scores(), key=lambda scored: (scored[1], _iteration(scored[0])), default=(None, 0.0))[0]

    def _scores(self) -> list[tuple[str, float]]:
        """Each checkpoint that has a score, by its manifest alone; higher is better, whatever the metric."""
        scores = []
        for name in self.names():
            with suppress(CheckpointError, RecursionError):
                score = _read_manifest(self.path / name).fields("about").fields("score")
                if score.value("value") is not None:
                    sign = 1.0 if score.switch("higher_is_better") else -1.0
                    scores.append((name, sign * score.number("value")))
        return scores


def without_zip(path: str | Path) -> Path:
    """The path without the suffix `.zip`, which SB3's users may give; checkpoints are folders."""
    folder = Path(path)
    return folder.with_suffix("") if folder.suffix == ".zip" else folder


def require_replaceable(folder: Path) -> Path:
    """The folder, if a checkpoint may take its place.

    Raises:
        ConfigError: there is something in it, and it is not a checkpoint.
    """
    if folder.exists() and not (folder / _MANIFEST).exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(
            f"{folder} exists and is not a checkpoint; accepted: a new or an empty folder, or a checkpoint"
        )
    return folder


def find_checkpoint(path: str | Path, which: str = "latest") -> Checkpoint:
    """The checkpoint that a path leads to.

    Args:
        path: a checkpoint, a run folder, or the folder `checkpoints` of a run.
        which: of a run: `latest`, `best`, or the number of an iteration.

    Raises:
        CheckpointError: it is none of these, there is no such checkpoint, or it is damaged.
    """
    folder = Path(path) if os.path.lexists(path) else without_zip(path)
    if (folder / _MANIFEST).exists() or _NAME.fullmatch(folder.name):
        return read_checkpoint(folder)
    for candidate in (folder / "checkpoints", folder):
        if candidate.is_dir() and CheckpointFolder(candidate).names():
            return CheckpointFolder(candidate).load(which)
    raise CheckpointError(f"{path} is {_what_it_is(folder)}; accepted: a checkpoint, or a run folder that has one")


def _what_it_is(path: Path) -> str:
    """What somebody may have taken for a checkpoint, in words."""
    if not path.exists():
        return "not there"
    if not path.is_dir():
        return "a file: an SB3 zip is opened by SB3's load, or by --init-from" if path.suffix == ".zip" else "a file"
    if (path / "config.yaml").is_file():
        return "a run folder without a checkpoint"
    runs = sorted((entry.parent for entry in path.glob("*/config.yaml")), key=lambda run: run.name)
    return f"a folder of runs, such as {runs[-1]}" if runs else "a folder that holds no valid checkpoint"


def fits_into_state(tree: Any) -> bool:
    """Whether a part of a state leaves room for the rest of it: at most half of what a checkpoint may hold."""
    plain, arrays = _without_arrays({"part": tree})
    text = _json(plain)
    small = len(text) <= _MAX_BYTES[_STATE] // 2 and opening_brackets(text) <= MAX_BRACKETS // 2
    return small and file_size(arrays) <= _MAX_ARRAY_BYTES // 2


def _iteration(name: str) -> int:
    return int(name.removeprefix("ckpt-"))
