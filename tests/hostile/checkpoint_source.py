"""A checkpoint taken apart, to be put together with other content; and what may stand in the place of its files."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

MANIFEST, STATE, ARRAYS = "manifest.json", "state.json", "arrays.safetensors"
DTYPES = {
    "BOOL": np.dtype(bool), "U8": np.dtype("u1"), "I8": np.dtype("i1"), "I16": np.dtype("i2"), "I32": np.dtype("i4"),
    "U32": np.dtype("u4"), "I64": np.dtype("i8"), "U64": np.dtype("u8"), "F16": np.dtype("f2"), "F32": np.dtype("f4"),
    "F64": np.dtype("f8"),
}  # fmt: skip


@dataclass(frozen=True)
class Odd:
    """What may stand in the place of a file."""

    kind: str  # `link`, `pipe`, `folder` or `sparse`
    target: Any = ""  # of a link: a path; of a sparse file: its size

    def make(self, path: Path) -> None:
        if self.kind == "link":
            path.symlink_to(self.target)
        elif self.kind == "pipe":
            os.mkfifo(path)
        elif self.kind == "folder":
            path.mkdir()
        else:
            path.touch()
            os.truncate(path, self.target)


Files = dict[str, bytes | Odd]
Tensor = tuple[str, list[int], bytes]  # dtype, shape, content
Path_ = tuple[Any, ...]  # of a node in a tree of JSON


class Raw(str):
    """JSON text that stands in a tree as it is."""

    __slots__ = ()


def to_json(tree: Any) -> bytes:
    """JSON, with `Raw` texts as they are."""
    raws: list[str] = []

    def plain(node: Any) -> Any:
        if isinstance(node, Raw):
            raws.append(str(node))
            return f"@raw{len(raws) - 1}@"
        if isinstance(node, dict):
            return {key: plain(value) for key, value in node.items()}
        return [plain(value) for value in node] if isinstance(node, list) else node

    text = json.dumps(plain(tree))
    for number, raw in enumerate(raws):
        text = text.replace(f'"@raw{number}@"', raw)
    return text.encode("utf-8", "surrogatepass")


def nodes(tree: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every node below the root, with its path."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in children:
        yield (*path, key), value
        yield from nodes(value, (*path, key))


def at(tree: Any, path: Sequence[Any]) -> Any:
    """The node at a path."""
    for key in path:
        tree = tree[key]
    return tree


# --- Safetensors files that may say anything of their tensors --------------------------------------------------------


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and payload of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def pack(header: Any, payload: bytes, length: int | None = None) -> bytes:
    """A safetensors file, or what looks like one."""
    text = header if isinstance(header, bytes) else to_json(header)
    return struct.pack("<Q", (len(text) if length is None else length) % 2**64) + text + payload


def tensors_of(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    header, payload = unpack(data)
    return {name: (of["dtype"], of["shape"], payload[slice(*of["data_offsets"])]) for name, of in header.items()}


def to_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A file of these tensors: wider numbers first, so that all are aligned."""
    header, payload = {}, b""
    for name, (dtype, shape, data) in sorted(tensors.items(), key=lambda item: -DTYPES[item[1][0]].itemsize):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(payload), len(payload) + len(data)]}
        payload += data
    return pack(header, payload)


# --- The checkpoint --------------------------------------------------------------------------------------------------


@dataclass
class Source:
    """A valid checkpoint, taken apart."""

    files: Files  # its files
    others: Sequence[Files] = field(default_factory=list)  # those of checkpoints of other trainings

    def data(self, name: str) -> bytes:
        """The content of a file."""
        content = self.files[name]
        assert isinstance(content, bytes)
        return content

    def tree(self, name: str = STATE) -> Any:
        """A new copy of the tree in `state.json`, or in the manifest."""
        return json.loads(self.data(name))

    @cached_property
    def tensor_files(self) -> list[str]:
        """The names of the files of tensors."""
        return sorted(name for name in self.files if name.endswith(".safetensors"))

    @cached_property
    def arrays(self) -> list[tuple[str, str]]:
        """(file, name) of every tensor."""
        return [(file, name) for file in self.tensor_files for name in tensors_of(self.data(file))]

    def with_file(self, name: str, content: bytes | Odd) -> Files:
        """With another file; the manifest agrees, unless it is the file."""
        files = {**self.files, name: content}
        return files if name == MANIFEST else sealed(files)

    def with_tree(self, tree: Any, name: str = STATE) -> Files:
        """With another tree in `state.json`, or in the manifest."""
        return self.with_file(name, to_json(tree))

    def with_tensor(self, file: str, name: str, tensor: Tensor) -> Files:
        """With another tensor."""
        return self.with_file(file, to_safetensors({**tensors_of(self.data(file)), name: tensor}))


def sealed(files: Files) -> Files:
    """With a manifest that says what is there now."""
    content = files[MANIFEST]
    assert isinstance(content, bytes)
    sizes = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
        if name != MANIFEST and isinstance(data, bytes)
    }
    return {**files, MANIFEST: json.dumps({**json.loads(content), "files": sizes}).encode()}


def read_files(folder: Path) -> Files:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def write_files(files: Files, folder: Path) -> None:
    """Make a folder of these files."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        with suppress(ValueError, FileNotFoundError):  # names that no file can have
            (folder / name).write_bytes(content) if isinstance(content, bytes) else content.make(folder / name)
