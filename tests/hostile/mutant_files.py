"""A mutated checkpoint folder and the odd things that may stand in it in the place of files."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MANIFEST, STATE, ARRAYS = "manifest.json", "state.json", "arrays.safetensors"

DTYPES = {
    "BOOL": np.dtype(bool), "U8": np.dtype("u1"), "I8": np.dtype("i1"), "I16": np.dtype("i2"), "I32": np.dtype("i4"),
    "U32": np.dtype("u4"), "I64": np.dtype("i8"), "U64": np.dtype("u8"), "F16": np.dtype("f2"), "F32": np.dtype("f4"),
    "F64": np.dtype("f8"),
}  # fmt: skip
UNKNOWN_DTYPES = ("BF16", "F8_E4M3", "F8_E5M2", "F4", "C64", "F128", "f32", "", "object", "O", "V8")


@dataclass(frozen=True)
class Odd:
    """What may stand in the place of a file.

    Attributes:
        kind: `link`, `hard link`, `pipe`, `folder`, `device`, `socket`, `sparse` or `filled`.
        target: of a link: a path; of a sparse file: its size; of a filled one: its beginning, and its size.
    """

    kind: str
    target: Any = ""


Files = dict[str, "bytes | Odd"]


@dataclass
class Mutant:
    """A folder that only looks like a checkpoint, or is one with other numbers in it.

    Attributes:
        kind: the family.
        what: was changed, in words.
        files: its content.
        place: `folder`, or what stands in the place of the folder: `link`, `file`, `pipe`, `nothing`.
    """

    kind: str
    what: str
    files: Files
    place: str = "folder"

    def write(self, folder: Path) -> None:
        """Put it on the disk; beside it, in `aside`, what it refers to."""
        if self.place == "nothing":
            return
        if self.place in ("file", "pipe"):
            _make(folder, b"{}" if self.place == "file" else Odd("pipe"))
            return
        real = folder.with_name("aside-real") if self.place == "link" else folder
        real.mkdir()
        for name, content in self.files.items():
            with suppress(ValueError, FileNotFoundError):  # names that no file can have
                _make(real / name, content)
        if self.place == "link":
            folder.symlink_to(real)


def _make(path: Path, content: bytes | Odd) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        _MAKERS[content.kind](path, content.target)


def _make_hard_link(path: Path, target: Any) -> None:
    aside = path.parent.with_name("aside-linked")
    aside.write_bytes(target)
    os.link(aside, path)


def _make_socket(path: Path, _: Any) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def _make_sparse(path: Path, size: Any) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def _make_filled(path: Path, beginning_and_size: Any) -> None:
    beginning, size = beginning_and_size
    path.write_bytes(beginning)
    os.truncate(path, size)


def _make_device(path: Path, _: Any) -> None:
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        path.symlink_to("/dev/zero")


_MAKERS: Mapping[str, Callable[[Path, Any], None]] = {
    "link": lambda path, target: path.symlink_to(target),
    "hard link": _make_hard_link,
    "pipe": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "device": _make_device,
    "socket": _make_socket,
    "sparse": _make_sparse,
    "filled": _make_filled,
}


def read_files(folder: Path) -> Files:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def sealed(files: Files) -> Files:
    """With a manifest that says what is there now."""
    manifest = json.loads(as_bytes(files[MANIFEST]))
    manifest["files"] = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
        if name != MANIFEST and isinstance(data, bytes)
    }
    return {**files, MANIFEST: json.dumps(manifest).encode()}


def as_bytes(content: bytes | Odd) -> bytes:
    assert isinstance(content, bytes)
    return content
