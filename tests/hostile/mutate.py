"""Mutants of a checkpoint folder: what damage, ignorance or malice may make of it, each from a seed.

Most of them bring a manifest that agrees with what they did, so that they reach what lies behind size and SHA-256.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import socket
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

MANIFEST, STATE, ARRAYS = "manifest.json", "state.json", "arrays.safetensors"

_DTYPES = {
    "BOOL": np.dtype(bool), "U8": np.dtype("u1"), "I8": np.dtype("i1"), "I16": np.dtype("i2"), "I32": np.dtype("i4"),
    "U32": np.dtype("u4"), "I64": np.dtype("i8"), "U64": np.dtype("u8"), "F16": np.dtype("f2"), "F32": np.dtype("f4"),
    "F64": np.dtype("f8"),
}  # fmt: skip
_UNKNOWN_DTYPES = ("BF16", "F8_E4M3", "F8_E5M2", "F4", "C64", "F128", "f32", "", "object", "O", "V8")


# --- Files -----------------------------------------------------------------------------------------------------------


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
    manifest = json.loads(_bytes(files[MANIFEST]))
    manifest["files"] = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
        if name != MANIFEST and isinstance(data, bytes)
    }
    return {**files, MANIFEST: json.dumps(manifest).encode()}


def _bytes(content: bytes | Odd) -> bytes:
    assert isinstance(content, bytes)
    return content


# --- JSON ------------------------------------------------------------------------------------------------------------


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


_NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 255, 623, 624, 625, 2**14, 2**14 + 1, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**62,
    2**63 - 1, 2**63, 2**64, 2**127, 2**128, -(2**63), -(2**63) - 1, 0.5, -0.5, -0.0, 1e-320, 1e38, 1e39, 1e308, -1e308,
    Raw("1" + "0" * 400), Raw("-1" + "0" * 400), Raw("1" + "0" * 5000), Raw("-" + "9" * 4299), Raw("1e999"),
    Raw("-1e999"), Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1E400"), Raw("0.1e-999"),
)  # fmt: skip
_TEXTS: tuple[Any, ...] = (
    "", "a", "shared", "agent1", "PCG64", "MT19937", "Philox", "ppo", "dqn", "MlpPolicy", "CnnPolicy", "lin_1e999",
    "lin_nan", "os:system", "__import__('os').system('id')", "cos\nsystem\n(S'id'\ntR.", "../../etc/passwd",
    "/etc/passwd", "\x00", "\x1b[31mred\x1b]0;title\x07", "line\nline", "\u202egnp.exe", "\u0660", "x" * 20000,
    Raw('"\\ud800"'), "$array", "True", "1", "float64", "torch.nn.Linear",
)  # fmt: skip
_TREES: tuple[Any, ...] = (
    None, True, False, [], {}, [0], [None], [[]], [[], {}], {"a": 1}, {"": {}}, {"$array": "/nowhere"}, {"$array": 1},
    {"$array": ["x"]}, {"$array": {"$array": "x"}}, {"$array": "/random/torch"}, {"$array": "/counters/agent_steps"},
    {"$array": "/random/torch", "more": 1}, [{"$array": "/random/torch"}], [0] * 2000, [1.5, "a", None, {}],
    {"__class__": "os.system"}, {"__reduce__": ["os.system", "id"]}, {"py/object": "os.system"},
    Raw("[" * 900 + "]" * 900), Raw('{"a":' * 900 + "1" + "}" * 900), Raw('{"a":1,"a":2}'), Raw("[" * 70 + "]" * 70),
)  # fmt: skip
HOSTILE = (*_NUMBERS, *_TEXTS, *_TREES)


def nodes(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every node below the root, with its path."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in children:
        yield (*path, key), value
        yield from nodes(value, (*path, key))


def leaves(tree: Any) -> list[tuple[Any, ...]]:
    """The paths of what holds nothing further."""
    return [path for path, value in nodes(tree) if not isinstance(value, (dict, list)) or not value]


def replace(tree: Any, path: Sequence[Any], value: Any) -> None:
    """Put something else in a place."""
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


def remove(tree: Any, path: Sequence[Any]) -> None:
    """Take something out."""
    for key in path[:-1]:
        tree = tree[key]
    del tree[path[-1]]


def at(tree: Any, path: Sequence[Any]) -> Any:
    """What stands in a place."""
    for key in path:
        tree = tree[key]
    return tree


def shown(value: Any) -> str:
    """A value for a report."""
    text = f"raw {str(value)!r}" if isinstance(value, Raw) else repr(value)
    return text if len(text) < 60 else f"{text[:50]}... ({len(text)} characters)"


def _path(path: Sequence[Any]) -> str:
    return "/".join(map(str, path))


# --- Safetensors -----------------------------------------------------------------------------------------------------


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and payload of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def pack(header: Any, payload: bytes, length: int | None = None) -> bytes:
    """A safetensors file, or what looks like one."""
    text = header if isinstance(header, bytes) else to_json(header)
    return struct.pack("<Q", (len(text) if length is None else length) % 2**64) + text + payload


Tensor = tuple[str, list[int], bytes]  # dtype, shape, content


def tensors_of(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    header, payload = unpack(data)
    return {
        name: (entry["dtype"], entry["shape"], payload[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def to_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A file of these tensors."""
    header, payload = {}, b""
    # As the format wants it: wider numbers first, so that all are aligned.
    for name, (dtype, shape, data) in sorted(tensors.items(), key=lambda item: -_width(item[1][0])):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(payload), len(payload) + len(data)]}
        payload += data
    return pack(header, payload)


def _width(dtype: str) -> int:
    return _DTYPES[dtype].itemsize if dtype in _DTYPES else 1


def _extremes(dtype: np.dtype[Any]) -> list[Any]:
    if dtype.kind == "f":
        info = np.finfo(dtype)
        return [np.nan, np.inf, -np.inf, info.max, info.min, info.tiny, info.smallest_subnormal, -1.0, 0.0, 1e30, -1e18]
    if dtype.kind == "b":
        return [False, True]
    limits = np.iinfo(dtype)
    middle = [0, 1, -1, 2, 3, 4, 5, 16, 17, 19, 20, 99, 255, 624, 625, 2**31, 2**53, 2**62]
    return [limits.min, limits.max, limits.max - 1, *(n for n in middle if limits.min <= n <= limits.max)]


# --- Families --------------------------------------------------------------------------------------------------------


@dataclass
class Source:
    """A valid checkpoint, taken apart.

    Attributes:
        files: its files.
        others: those of checkpoints of something else.
    """

    files: Files
    others: Sequence[Files] = field(default_factory=list)

    @property
    def state(self) -> Any:
        """A new copy of `state.json`."""
        return json.loads(_bytes(self.files[STATE]))

    @property
    def manifest(self) -> Any:
        """A new copy of `manifest.json`."""
        return json.loads(_bytes(self.files[MANIFEST]))

    @cached_property
    def tensor_files(self) -> list[str]:
        """The names of the files of tensors."""
        return sorted(name for name in self.files if name.endswith(".safetensors"))

    @cached_property
    def arrays(self) -> list[tuple[str, str]]:
        """(file, name) of every tensor."""
        return [(file, name) for file in self.tensor_files for name in tensors_of(_bytes(self.files[file]))]

    def with_file(self, name: str, data: bytes | Odd) -> Files:
        """With another file; the manifest agrees."""
        return sealed({**self.files, name: data})

    def with_state(self, state: Any) -> Files:
        """With another `state.json`; the manifest agrees."""
        return self.with_file(STATE, to_json(state))

    def with_tensor(self, file: str, name: str, tensor: Tensor) -> Files:
        """With another tensor; the manifest agrees."""
        return self.with_file(file, to_safetensors({**tensors_of(_bytes(self.files[file])), name: tensor}))


class Dice:
    """A generator of random numbers, with the questions that mutations ask."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def number(self, below: int) -> int:
        return int(self.rng.integers(below))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.number(len(choices))]

    def bytes(self, length: int) -> bytes:
        return self.rng.bytes(length)


Family = Callable[[Source, Dice], Mutant]


def _flipped(data: bytes, dice: Dice) -> tuple[bytes, str]:
    if not data:
        return b"\x00", "a byte"
    changed, places = bytearray(data), [dice.number(len(data)) for _ in range(dice.one_of([1, 1, 2, 8, 40]))]
    for place in places:
        changed[place] = dice.one_of([changed[place] ^ 1 << dice.number(8), dice.number(256), 0, 255])
    return bytes(changed), f"bytes {sorted(places)[:4]}"


def flipped_bytes(source: Source, dice: Dice) -> Mutant:
    """Any byte of any file; the manifest does not know."""
    name = dice.one_of(sorted(source.files))
    data, what = _flipped(_bytes(source.files[name]), dice)
    return Mutant("bytes flipped", f"{name}: {what}", {**source.files, name: data})


def sealed_flipped_bytes(source: Source, dice: Dice) -> Mutant:
    """Any byte; the manifest agrees. Half of them in the headers of the tensors."""
    name = dice.one_of([STATE, *source.tensor_files])
    data = _bytes(source.files[name])
    if name != STATE and dice.number(2):
        end = 8 + int.from_bytes(data[:8], "little")
        head, what = _flipped(data[:end], dice)
        return Mutant("bytes flipped, sealed", f"{name}, header: {what}", source.with_file(name, head + data[end:]))
    data, what = _flipped(data, dice)
    return Mutant("bytes flipped, sealed", f"{name}: {what}", source.with_file(name, data))


def cut(source: Source, dice: Dice) -> Mutant:
    """Too short, empty or too long."""
    name = dice.one_of(sorted(source.files))
    data = _bytes(source.files[name])
    end = dice.one_of([0, 1, 7, 8, 9, len(data) - 1, dice.number(len(data) + 1)])
    data = data[:end] if dice.number(4) else data + dice.one_of([b"\x00", b"}", b"PK\x03\x04", dice.bytes(1000)])
    files = {**source.files, name: data}
    agreed = name != MANIFEST and dice.number(4) > 0
    what = f"{name} has {len(data)} bytes{', sealed' if agreed else ''}"
    return Mutant("cut or extended", what, sealed(files) if agreed else files)


def manifest_leaf(source: Source, dice: Dice) -> Mutant:
    """Another value anywhere in the manifest, or a field more or less."""
    tree = source.manifest
    path = dice.one_of([path for path, _ in nodes(tree)])
    value = dice.one_of(HOSTILE)
    if dice.number(5) == 0:
        remove(tree, path)
        what = f"without {_path(path)}"
    else:
        replace(tree, path, value)
        what = f"{_path(path)} = {shown(value)}"
    return Mutant("manifest", what, {**source.files, MANIFEST: to_json(tree)})


def manifest_names(source: Source, dice: Dice) -> Mutant:
    """Names that lead elsewhere, in the manifest and in the folder."""
    evil = dice.one_of(
        ["../x.safetensors", "/etc/passwd", "..", ".", "a/b", "policy-\u0660\u0660\u0660.safetensors", "state.json\n",
         "STATE.JSON", "policy-0000.safetensors", "policy-999.safetensors", "x" * 250, "\u202e.json", "evil.pkl",
         "state.json ", "arrays.safetensors.pkl", "C:\\x", "con", "\udcff", ""]
    )  # fmt: skip
    files = dict(source.files)
    victim = dice.one_of([name for name in sorted(files) if name != MANIFEST])
    data = files[victim]
    if dice.number(2):
        del files[victim]
    files = sealed({**files, evil: data} if "/" not in evil and evil not in ("", ".", "..") else files)
    manifest = json.loads(_bytes(files[MANIFEST]))
    manifest["files"][evil] = {"size": len(_bytes(data)), "sha256": hashlib.sha256(_bytes(data)).hexdigest()}
    return Mutant("names", f"{evil!r} for {victim}", {**files, MANIFEST: to_json(manifest)})


def tensor_header(source: Source, dice: Dice) -> Mutant:
    """Lies in the header of a safetensors file: offsets, shapes, dtypes, names."""
    file = dice.one_of(source.tensor_files)
    header, payload = unpack(_bytes(source.files[file]))
    name = dice.one_of(sorted(header)) if header else "x"
    header.setdefault(name, {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]})
    what = _HEADER_LIES[dice.number(len(_HEADER_LIES))](header, name, len(payload), dice)
    return Mutant("tensor header", f"{file}, {name}: {what}", source.with_file(file, pack(header, payload)))


def _lie_offsets(header: Any, name: str, size: int, dice: Dice) -> str:
    numbers = [0, 1, -1, size, size + 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 0.5, "0", None, True]
    offsets = [dice.one_of(numbers) for _ in range(dice.one_of([0, 1, 2, 2, 2, 2, 3]))]
    header[name]["data_offsets"] = offsets
    return f"data_offsets {offsets}"


def _lie_shape(header: Any, name: str, size: int, dice: Dice) -> str:
    sizes = [0, 0, 1, 2, -1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 1.5, None, "1", True, []]
    shape = dice.one_of([[dice.one_of(sizes) for _ in range(dice.number(5))], [0] * 33, [1] * 65, [0, 2**62, 2**62]])
    header[name]["shape"] = shape
    if dice.number(2):
        header[name]["data_offsets"] = [size, size]
    return f"shape {shape}"[:100]


def _lie_dtype(header: Any, name: str, _: int, dice: Dice) -> str:
    dtype = dice.one_of([*_DTYPES, *_UNKNOWN_DTYPES, None, 1, [], {}])
    header[name]["dtype"] = dtype
    return f"dtype {dtype!r}"


def _lie_name(header: Any, name: str, _: int, dice: Dice) -> str:
    other = dice.one_of([*map(str, _TEXTS), "__metadata__", name + " ", name.upper()])
    header[other] = header.pop(name)
    return f"is named {other[:40]!r}"


def _lie_entry(header: Any, name: str, _: int, dice: Dice) -> str:
    value = dice.one_of(HOSTILE)
    header[dice.one_of([name, "__metadata__", "more"])] = value
    return f"an entry is {shown(value)}"


def _lie_field(header: Any, name: str, _: int, dice: Dice) -> str:
    field_name, value = dice.one_of(["dtype", "shape", "data_offsets", "more"]), dice.one_of(HOSTILE)
    if isinstance(header[name], dict):
        header[name][field_name] = value
    return f"{field_name} {shown(value)}"


def _lie_missing(header: Any, name: str, _: int, dice: Dice) -> str:
    del header[name]
    return "left out"


_HEADER_LIES = (_lie_offsets, _lie_shape, _lie_dtype, _lie_name, _lie_entry, _lie_field, _lie_missing)


def tensor_file(source: Source, dice: Dice) -> Mutant:
    """A safetensors file that is wrong as a whole."""
    file = dice.one_of(source.tensor_files)
    header, payload = unpack(_bytes(source.files[file]))
    text, data = to_json(header), payload
    length: int | None = None
    entry = b'{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    which = dice.number(11)
    if which == 0:
        length = dice.one_of([0, 1, len(text) - 1, len(text) + 1, 2**31, 2**32, 10**8, 10**8 + 1, 2**63, 2**64 - 1])
    elif which == 1:
        text = b"[" * 100_000
    elif which == 2:
        text = b'{"a":' * 100_000
    elif which == 3:
        text = b"{" + b",".join(b'"%d":%s' % (i, entry) for i in range(20_000)) + b"}"
    elif which == 4:
        text = b'{"a":%s,"a":%s}' % (entry, entry)
    elif which == 5:
        text = b"\xef\xbb\xbf" + text
    elif which == 6:
        text += b" " * dice.one_of([1, 8, 100_000])
    elif which == 7:
        text = to_json({**header, "__metadata__": {"x" * 1000: "y" * 100_000}})
    elif which == 8:
        data = payload + dice.bytes(64)
    elif which == 9:
        text = text.replace(b'"', b"'")
    else:
        text = text.replace(b"[", b"[" + dice.one_of([b"1e5,", b"NaN,", b"0x1,", b"9" * 5000 + b","]), 1)
    what = f"{file}: whole-file fault {which}, length {length}"
    return Mutant("tensor file", what, source.with_file(file, pack(text, data, length)))


def tensor_values(source: Source, dice: Dice) -> Mutant:
    """Other numbers of the right dtype and shape: extremes, NaN, negative, random bytes."""
    file, name = dice.one_of(source.arrays)
    dtype, shape, data = tensors_of(_bytes(source.files[file]))[name]
    kind = _DTYPES[dtype]
    values = np.frombuffer(data, dtype=kind).copy()
    what = "nothing"
    if values.size:
        how, value = dice.number(5), dice.one_of(_extremes(kind))
        if how == 0:
            values[:], what = value, f"all {value}"
        elif how in (1, 2):
            place = dice.number(values.size)
            values[place], what = value, f"{value} at {place}"
        elif how == 3:
            values, what = np.frombuffer(dice.bytes(len(data)), dtype=kind), "random bytes"
        else:
            raw = bytearray(data)
            place = dice.number(len(raw))
            raw[place] = dice.number(256)
            values, what = np.frombuffer(bytes(raw), dtype=kind), f"another byte {place}"
    tensor = (dtype, shape, values.tobytes())
    return Mutant("tensor values", f"{file}, {name}: {what}", source.with_tensor(file, name, tensor))


def tensor_shape(source: Source, dice: Dice) -> Mutant:
    """Another shape, with as many numbers as it says."""
    file, name = dice.one_of(source.arrays)
    dtype, shape, data = tensors_of(_bytes(source.files[file]))[name]
    longer = [shape[0] + 1, *shape[1:]] if shape else [2]
    others = [[], [0], [1], [0, 2**40], [*shape, 1], [1, *shape], shape[::-1], shape[1:], longer, [0, *shape[1:]],
              [2, *shape], [1] * 40]  # fmt: skip
    other = dice.one_of(others)
    size = int(np.prod([min(n, 10**6) for n in other], dtype=np.int64)) * _width(dtype)
    content = (data * (size // max(1, len(data)) + 1))[:size].ljust(size, b"\x00")
    return Mutant("tensor shape", f"{file}, {name}: {other}", source.with_tensor(file, name, (dtype, other, content)))


def tensor_dtype(source: Source, dice: Dice) -> Mutant:
    """Another dtype, the content with it."""
    file, name = dice.one_of(source.arrays)
    dtype, shape, data = tensors_of(_bytes(source.files[file]))[name]
    other = dice.one_of([each for each in _DTYPES if each != dtype])
    with np.errstate(all="ignore"):
        content = np.frombuffer(data, dtype=_DTYPES[dtype]).astype(_DTYPES[other]).tobytes()
    return Mutant("tensor dtype", f"{file}, {name}: {other}", source.with_tensor(file, name, (other, shape, content)))


def tensor_names(source: Source, dice: Dice) -> Mutant:
    """Tensors that are missing, too many, or under each other's names."""
    file, name = dice.one_of(source.arrays)
    tensors = tensors_of(_bytes(source.files[file]))
    how = dice.number(3)
    if how == 0:
        del tensors[name]
    elif how == 1:
        tensors[dice.one_of([*map(str, _TEXTS), name + "x"])] = tensors[name]
    else:
        other = dice.one_of(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    what = f"{file}, {name}: {('missing', 'twice', 'swapped')[how]}"
    return Mutant("tensor names", what, source.with_file(file, to_safetensors(tensors)))


def state_leaf(source: Source, dice: Dice) -> Mutant:
    """A hostile value in the place of any leaf."""
    state = source.state
    path = dice.one_of(leaves(state))
    return leaf_mutant(source, path, dice.one_of(HOSTILE))


def leaf_mutant(source: Source, path: Sequence[Any], value: Any) -> Mutant:
    """This value in this place of `state.json`."""
    state = source.state
    replace(state, path, value)
    return Mutant("state leaf", f"{_path(path)} = {shown(value)}", source.with_state(state))


def state_neighbour(source: Source, dice: Dice) -> Mutant:
    """A number that is almost right."""
    state = source.state
    numbers = [path for path in leaves(state) if isinstance(at(state, path), (int, float))]
    path = dice.one_of(numbers)
    value = at(state, path)
    other = dice.one_of([value + 1, value - 1, -value, value * 2, float(value), value * 10**6, bool(value), str(value)])
    return Mutant("state neighbour", *_changed(source, path, other))


def _changed(source: Source, path: Sequence[Any], value: Any) -> tuple[str, Files]:
    state = source.state
    replace(state, path, value)
    return f"{_path(path)} = {shown(value)}", source.with_state(state)


def state_node(source: Source, dice: Dice) -> Mutant:
    """A hostile value in the place of a whole branch."""
    branches = [path for path, value in nodes(source.state) if isinstance(value, (dict, list))]
    return Mutant("state branch", *_changed(source, dice.one_of(branches), dice.one_of(HOSTILE)))


def state_fields(source: Source, dice: Dice) -> Mutant:
    """A field or an item less or more, at any node."""
    state = source.state
    how = dice.number(3)
    if how == 0:
        path = dice.one_of([path for path, _ in nodes(state)])
        remove(state, path)
        return Mutant("state fields", f"without {_path(path)}", source.with_state(state))
    branches = [(), *(path for path, value in nodes(state) if isinstance(value, (dict, list)))]
    path = dice.one_of(branches)
    node, value = at(state, path), dice.one_of(HOSTILE)
    if isinstance(node, dict):
        name = dice.one_of([*map(str, _TEXTS), *(str(p[-1]) for p, _ in nodes(state))])
        node[name] = value
    else:
        node.insert(dice.number(len(node) + 1), value if how == 1 or not node else node[0])
    return Mutant("state fields", f"more in {_path(path)}: {shown(value)}", source.with_state(state))


def state_text(source: Source, dice: Dice) -> Mutant:
    """JSON that is wrong, or right and monstrous, as a text."""
    text = _bytes(source.files[STATE])
    body = text[1:-1]
    big = dice.one_of([2**19, 2**20 - 100, 2**20 + 1, 2**22 - 100, 2**22 + 1, 2**25])
    texts: list[tuple[str, Callable[[], bytes]]] = [
        ("100,000 lists", lambda: b"[" * 100_000 + b"]" * 100_000),
        ("100,000 mappings", lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        ("100,000 lists in a field", lambda: b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"," + body + b"}"),
        ("980 lists in a field", lambda: b'{"x":' + b"[" * 980 + b"]" * 980 + b"," + body + b"}"),
        ("digits", lambda: b'{"x":' + b"9" * dice.one_of([4300, 4301, 10**6]) + b"," + body + b"}"),
        ("many huge numbers", lambda: b'{"x":[' + b",".join([b"9" * 4299] * 200) + b"]," + body + b"}"),
        ("a byte order mark", lambda: b"\xef\xbb\xbf" + text),
        ("UTF-16", lambda: text.decode().encode("utf-16")),
        ("UTF-32", lambda: text.decode().encode("utf-32")),
        ("Latin 1", lambda: b'{"\xe4":1,' + body + b"}"),
        ("zero bytes", lambda: b"\x00" * 1000 + text),
        ("two documents", lambda: text + text),
        ("a comment", lambda: b"/* */" + text),
        ("single quotes", lambda: text.replace(b'"', b"'")),
        ("every key twice", lambda: b"{" + body + b"," + body + b"}"),
        ("another num_envs first", lambda: b'{"num_envs":999,' + body + b"}"),
        ("lone surrogates", lambda: b'{"\\ud800":"\\udfff",' + body + b"}"),
        (f"{big} bytes of lists", lambda: b'{"x":[' + b"[]," * ((big - len(text) - 20) // 3) + b"0]," + body + b"}"),
        (
            f"{big} bytes of deep lists",
            lambda: b'{"x":[' + b"[[[[[[[[]]]]]]]]," * ((big - len(text) - 20) // 17) + b"0]," + body + b"}",
        ),
        (f"{big} bytes of mappings", lambda: b'{"x":[' + b"{}," * ((big - len(text) - 20) // 3) + b"0]," + body + b"}"),
        (f"{big} bytes of spaces", lambda: text + b" " * (big - len(text))),
        (f"{big} bytes of text", lambda: b'{"x":"' + b"a" * (big - len(text) - 20) + b'",' + body + b"}"),
        (f"{big} bytes of numbers", lambda: b'{"x":[' + b"1e5," * ((big - len(text) - 20) // 4) + b"0]," + body + b"}"),
        ("a list", lambda: b"[" + text + b"]"),
        ("null", lambda: b"null"),
        ("only spaces", lambda: b"   "),
        ("NaN", lambda: b"NaN"),
    ]
    what, make = dice.one_of(texts)
    name = STATE if dice.number(5) else MANIFEST
    files = source.with_file(STATE, make()) if name == STATE else {**source.files, MANIFEST: make()}
    return Mutant("JSON text", f"{name}: {what}", files)


def array_reference(source: Source, dice: Dice) -> Mutant:
    """`$array` that names another array, or none, or is where no array belongs."""
    state = source.state
    names = [name for file, name in source.arrays if file == ARRAYS]
    references = [path for path, value in nodes(state) if isinstance(value, dict) and "$array" in value]
    places = references if dice.number(2) else [path for path, _ in nodes(state)]
    path = dice.one_of(places)
    target = dice.one_of([*names, *names, "/nowhere", "", "..", 0, None, ["x"], {"$array": "x"}, "x" * 10_000])
    value: Any = {"$array": target}
    if dice.number(6) == 0:
        value["more"] = 1
    replace(state, path, value)
    return Mutant("array reference", f"{_path(path)} -> {shown(target)}", source.with_state(state))


def odd_file(source: Source, dice: Dice) -> Mutant:
    """Something that is no regular file, under a name that is allowed; the manifest says what it should be."""
    name = dice.one_of(sorted(source.files))
    data = _bytes(source.files[name])
    if dice.number(10) == 0 and name in source.tensor_files:
        return large_tensor(source, dice)
    odd = dice.one_of(
        [Odd("link", "/dev/zero"), Odd("link", "/etc/passwd"), Odd("link", name), Odd("link", "nowhere"),
         Odd("link", "../aside-linked"), Odd("link", "."), Odd("hard link", data), Odd("pipe"), Odd("folder"),
         Odd("device"), Odd("socket"), Odd("sparse", 2**32), Odd("sparse", 2**32 + 1), Odd("sparse", 2**40),
         Odd("sparse", 2**25 + 1)]
    )  # fmt: skip
    files: Files = {**source.files, name: odd}
    if odd.kind == "sparse" and name != MANIFEST:
        manifest = source.manifest
        manifest["files"][name]["size"] = odd.target
        files[MANIFEST] = to_json(manifest)
    return Mutant("no regular file", f"{name}: {odd.kind} {odd.target if odd.kind != 'hard link' else ''}", files)


def large_tensor(source: Source, dice: Dice) -> Mutant:
    """A tensor of hundreds of megabytes of zeros, all of it as it should be; on the disk it takes next to nothing."""
    file, size = dice.one_of(source.tensor_files), dice.one_of([2**26, 2**28, 384 * 2**20, 384 * 2**20 + 1, 2**30])
    name, numbers = sorted(tensors_of(_bytes(source.files[file])) or ["x"])[0], (size - 1000) // 4
    beginning = pack({name: {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}, b"")
    size = len(beginning) + 4 * numbers
    digest = hashlib.sha256(beginning)
    for start in range(0, 4 * numbers, 2**24):
        digest.update(bytes(min(2**24, 4 * numbers - start)))
    manifest = source.manifest
    manifest["files"][file] = {"size": size, "sha256": digest.hexdigest()}
    files: Files = {**source.files, file: Odd("filled", (beginning, size)), MANIFEST: to_json(manifest)}
    return Mutant("large tensor", f"{file}: {size} bytes", files)


def odd_folder(source: Source, dice: Dice) -> Mutant:
    """Something in the place of the folder."""
    place = dice.one_of(["link", "file", "pipe", "nothing"])
    return Mutant("no folder", place, dict(source.files), place)


class _Bomb:
    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.system, ("touch /tmp/marl_sb3_was_here",)


def payloads() -> dict[str, bytes]:
    """Files of other formats, most of which run code when their own readers open them."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(_Bomb()))
        archive.writestr("archive/data/0", b"\x00" * 2**22)
    objects = io.BytesIO()
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    return {
        **{f"pickle {protocol}": pickle.dumps(_Bomb(), protocol) for protocol in (0, 2, 5)},
        "torch file": zipped.getvalue(),
        "npy of objects": objects.getvalue(),
        "zlib bomb": zlib.compress(b"\x00" * 2**24, 9),
        "gzip": b"\x1f\x8b\x08\x00" + bytes(100),
        "shell script": b"#!/bin/sh\ntouch /tmp/marl_sb3_was_here\n",
        "ELF": b"\x7fELF\x02\x01\x01" + bytes(200),
        "Python": b"import os; os.system('touch /tmp/marl_sb3_was_here')\n",
        "YAML": b"!!python/object/apply:os.system ['touch /tmp/marl_sb3_was_here']\n",
        "tar": b"../../x".ljust(512, b"\x00"),
        "nothing": b"",
        "null": b"null",
        "empty mapping": b"{}",
        "8 zero bytes": bytes(8),
    }


_PAYLOADS = payloads()


def payload(source: Source, dice: Dice) -> Mutant:
    """A file of another format under an allowed name."""
    name, kind = dice.one_of([STATE, *source.tensor_files, MANIFEST]), dice.one_of(sorted(_PAYLOADS))
    data = _PAYLOADS[kind]
    if name in source.tensor_files and dice.number(3) == 0:
        data = pack({"x": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}, data)
        kind += " in a tensor"
    files = {**source.files, name: data}
    return Mutant("payload", f"{name}: {kind}", sealed(files) if name != MANIFEST else files)


def of_another_run(source: Source, dice: Dice) -> Mutant:
    """Files of another training among those of this one, or all of them."""
    other = dice.one_of(source.others)
    names = dice.one_of([list(other), [dice.one_of(sorted(other))], [STATE, ARRAYS], [STATE]])
    files = dict(other) if len(names) == len(other) else {**source.files, **{name: other[name] for name in names}}
    return Mutant("another run", ", ".join(sorted(names))[:60], sealed(files))


def swapped_files(source: Source, dice: Dice) -> Mutant:
    """Files under each other's names, missing ones, more of them."""
    files = dict(source.files)
    one, other = dice.one_of(source.tensor_files), dice.one_of(source.tensor_files)
    how = dice.number(3)
    if how == 0:
        files[one], files[other] = files[other], files[one]
    elif how == 1:
        del files[one]
    else:
        for number in range(dice.one_of([1, 5, 300])):
            files[f"{dice.one_of(['policy', 'optimizer'])}-{number + 3:03d}.safetensors"] = files[one]
    return Mutant("files", f"{('swapped', 'missing', 'more')[how]}: {one}, {other}", sealed(files))


# --- Families that know what the fields mean ------------------------------------------------------------------------


def torch_generator(source: Source, dice: Dice) -> Mutant:
    """PyTorch's generator, whose indices PyTorch itself does not check against each other."""
    dtype, shape, data = tensors_of(_bytes(source.files[ARRAYS]))["/random/torch"]
    raw = bytearray(data)
    at_byte, form, numbers = dice.one_of(
        [(8, "<i", [0, -1, 1, 623, 624, 625, 2**31 - 1]), (12, "<i", [0, 1, 2, -1]),
         (16, "<Q", [0, 1, 623, 624, 625, 2**31, 2**63, 2**64 - 1]), (5016, "<d", [np.nan, np.inf, -1e308]),
         (5024, "<d", [np.nan, 1e308]), (5032, "<d", [np.nan]), (5040, "<i", [1, 2, -1]), (5048, "<f", [np.nan]),
         (5052, "<B", [1, 2, 255])]
    )  # fmt: skip
    number = dice.one_of(numbers)
    struct.pack_into(form, raw, at_byte, number)
    if dice.number(2):  # PyTorch accepts it if both are within 624
        struct.pack_into("<i", raw, 8, dice.one_of([1, 624]))
        struct.pack_into("<Q", raw, 16, dice.one_of([0, 300, 624]))
    tensor = (dtype, shape, bytes(raw))
    return Mutant("torch generator", f"{number} at byte {at_byte}", source.with_tensor(ARRAYS, "/random/torch", tensor))


def optimizer(source: Source, dice: Dice) -> Mutant:
    """Settings and moments that PyTorch does not look at when they are loaded."""
    state = source.state
    policy_id = dice.one_of(sorted(state["policies"]))
    groups = state["policies"][policy_id]["optimizers"]["policy.optimizer"]
    name = dice.one_of(sorted(groups[0]))
    values = [True, False, None, 0, 0.0, 1, 1.0, 2.0, 1e308, 1e-320, 5, [0.0, 0.0], [1.0, 1.0], [0.9, 2.0], [0.9, 1.0],
              [1, 0], [0.9], [], "x", Raw("1" + "0" * 400), [Raw("1" + "0" * 400), 0.9]]  # fmt: skip
    value = dice.one_of(values)
    groups[0][name] = value
    return Mutant("optimizer", f"{policy_id}: {name} = {shown(value)}", source.with_state(state))


def optimizer_step(source: Source, dice: Dice) -> Mutant:
    """How many steps it has taken, and its moments."""
    file = dice.one_of([name for name in source.tensor_files if name.startswith("optimizer")])
    tensors = tensors_of(_bytes(source.files[file]))
    kind = dice.one_of(["step", "exp_avg", "exp_avg_sq"])
    value = dice.one_of([-1.0, 0.0, 0.5, 1e6, 2.0**53, 2.0**63, 3e38, -3e38, -1e-3])
    for name, (dtype, shape, data) in list(tensors.items()):
        if name.endswith("/" + kind):
            tensors[name] = (dtype, shape, np.full(len(data) // 4, value, np.float32).tobytes())
    return Mutant("optimizer tensors", f"{file}: all {kind} {value}", source.with_file(file, to_safetensors(tensors)))


def weights(source: Source, dice: Dice) -> Mutant:
    """Weights as large as float32 holds, in one layer or in all."""
    file = dice.one_of([name for name in source.tensor_files if name.startswith("policy")])
    tensors, value = tensors_of(_bytes(source.files[file])), dice.one_of([3e38, -3e38, 1e20, 1e10, 0.0, 1e-45])
    chosen = list(tensors) if dice.number(2) else [dice.one_of(sorted(tensors))]
    for name in chosen:
        dtype, shape, data = tensors[name]
        signs = 2 * dice.rng.integers(0, 2, len(data) // 4) - 1
        tensors[name] = (dtype, shape, (signs * value).astype(np.float32).tobytes())
    what = f"{file}: {value} in {'all' if len(chosen) > 1 else chosen[0]}"
    return Mutant("weights", what, source.with_file(file, to_safetensors(tensors)))


def specs(source: Source, dice: Dice) -> Mutant:
    """Policies that cannot be built, or would fill the memory."""
    state = source.state
    plain = [policy_id for policy_id, spec in state["specs"].items() if spec]
    if not plain:
        return state_leaf(source, dice)
    policy_id = dice.one_of(sorted(plain))
    given = state["specs"][policy_id]["hyperparameters"]
    kwargs = given.setdefault("policy_kwargs", {}) or {}
    where, name, value = dice.one_of(_SPECS)
    (kwargs if where == "policy_kwargs" else given if where == "hyperparameters" else state["specs"][policy_id])[
        name
    ] = value
    return Mutant("specs", f"{policy_id}: {where}/{name} = {shown(value)}", source.with_state(state))


_SPECS: list[tuple[str, str, Any]] = [
    *(("policy_kwargs", "net_arch", value) for value in (
        [16384] * 3, [16384], [16384] * 2, [0], [-1], [8, 4, 4], [1] * 2000, "64", {"pi": [8], "vf": 5}, {"pi": "ab"},
        {"pi": [16384] * 5}, {"x": [1]}, [[8]], [8.5], [True], None, [{"pi": [8]}], {}, [None], [2**62], [8, 4.0],
    )),
    *(("policy_kwargs", name, value) for name, value in (
        ("activation_fn", "relu"), ("activation_fn", "os.system"), ("activation_fn", 3), ("activation_fn", None),
        ("ortho_init", 3), ("log_std_init", 1e308), ("log_std_init", "x"), ("log_std_init", -1e308),
        ("full_std", "x"), ("use_expln", 1), ("squash_output", True), ("features_extractor_class", "os.system"),
        ("features_extractor_class", None), ("features_extractor_class", {}), ("features_extractor_kwargs", {"x": 1}),
        ("features_extractor_kwargs", {"features_dim": 2**14}), ("features_extractor_kwargs", []),
        ("share_features_extractor", False), ("normalize_images", "x"), ("optimizer_class", "torch.optim.Adam"),
        ("optimizer_class", None), ("optimizer_kwargs", {"capturable": True}), ("optimizer_kwargs", {"fused": True}),
        ("optimizer_kwargs", {"amsgrad": True}), ("optimizer_kwargs", {"lr": 1}), ("optimizer_kwargs", {"betas": 1}),
        ("optimizer_kwargs", {"betas": [1.0, 1.0]}), ("optimizer_kwargs", {"eps": 0}), ("optimizer_kwargs", []),
        ("optimizer_kwargs", {"differentiable": True}), ("optimizer_kwargs", {"foreach": True}),
        ("optimizer_kwargs", {"maximize": True}), ("optimizer_kwargs", {"weight_decay": 1e308}),
        ("observation_space", None), ("action_space", {}), ("lr_schedule", 1), ("use_sde", True), ("self", 1),
    )),
    *(("hyperparameters", name, value) for name, value in (
        ("algorithm", "x"), ("policy", "x"), ("self", 1), ("cls", 1), ("__class__", 1), ("env", "os:system"),
        ("device", "cuda"), ("device", "meta"), ("tensorboard_log", "/tmp/x"), ("_init_setup_model", False),
        ("rollout_buffer_class", "x"), ("stats_window_size", 2**14), ("n_epochs", 2000), ("n_epochs", 2**14 + 1),
        ("batch_size", 1), ("batch_size", 0), ("batch_size", 72), ("batch_size", 2**14), ("n_steps", 23),
        ("learning_rate", 1e308), ("learning_rate", "lin_1e308"), ("learning_rate", "lin_" + "9" * 5000),
        ("learning_rate", "exp_1"), ("learning_rate", 0), ("learning_rate", -1), ("learning_rate", []),
        ("gamma", 2), ("gamma", 0), ("gae_lambda", -1), ("clip_range", 1e308), ("clip_range_vf", 1e-300),
        ("ent_coef", 1e308), ("vf_coef", 1e308), ("max_grad_norm", 1e-320), ("max_grad_norm", 1e308),
        ("target_kl", 1e-300), ("use_sde", True), ("sde_sample_freq", -1), ("sde_sample_freq", 2**14),
        ("normalize_advantage", False), ("policy_kwargs", None), ("policy_kwargs", []), ("policy_kwargs", "x"),
        ("x" * 20000, 1), ("learning_rat", 1), ("\x1b[31m", 1), ("seed", 3), ("verbose", 2),
    )),
    *(("", name, value) for name, value in (
        ("algorithm", "os.system"), ("algorithm", ""), ("algorithm", None), ("algorithm", "x" * 20000),
        ("policy", "CnnPolicy"), ("policy", "MultiInputPolicy"), ("policy", "os.system"), ("policy", None),
        ("hyperparameters", None), ("hyperparameters", []),
    )),
]  # fmt: skip


def action_log(source: Source, dice: Dice) -> Mutant:
    """Actions that nobody can have taken, and logs that never end."""
    tensors = tensors_of(_bytes(source.files[ARRAYS]))
    logs = [name for name in tensors if "/log/actions/" in name]
    if not logs:
        return tensor_values(source, dice)
    length = dice.one_of([0, 1, 500, 5000, 40_000])
    how = dice.number(2)
    for name in logs:
        dtype, shape, data = tensors[name]
        step = len(data) // max(1, shape[0])
        if how == 0 and step:
            tensors[name] = (dtype, [length, *shape[1:]], (data[:step] or bytes(step)) * length)
        elif data:
            values = np.frombuffer(data, _DTYPES[dtype]).copy()
            values[dice.number(len(values))] = dice.one_of(_extremes(_DTYPES[dtype]))
            tensors[name] = (dtype, shape, values.tobytes())
    if how == 0:
        for name in [name for name in tensors if name.endswith("/log/lengths")]:
            dtype, shape, data = tensors[name]
            lengths = np.frombuffer(data, np.int64) * dice.number(2)
            lengths[0] = length - lengths[1:].sum()
            tensors[name] = (dtype, shape, lengths.tobytes())
    what = f"{length} steps" if how == 0 else "an impossible action"
    return Mutant("action log", what, source.with_file(ARRAYS, to_safetensors(tensors)))


def env_arrays(source: Source, dice: Dice) -> Mutant:
    """Where the envs are: cells, times, who is active, what was seen."""
    found = [name for file, name in source.arrays if file == ARRAYS and name.startswith(("/env/", "/tracker/"))]
    name = dice.one_of(found)
    dtype, shape, data = tensors_of(_bytes(source.files[ARRAYS]))[name]
    values = np.frombuffer(data, _DTYPES[dtype]).copy()
    value = dice.one_of(_extremes(_DTYPES[dtype]))
    if values.size:
        values[slice(None) if dice.number(2) else dice.number(values.size)] = value
    tensor = (dtype, shape, values.tobytes())
    if dtype == "BOOL" and dice.number(3) == 0:
        tensor = (dtype, shape, bytes([dice.one_of([2, 3, 128, 255])]) * len(data))
    return Mutant("env state", f"{name}: {value}", source.with_tensor(ARRAYS, name, tensor))


def several(source: Source, dice: Dice) -> Mutant:
    """Two of the others, one on top of the other."""
    calm = [family for family in FAMILIES if family not in (several, odd_file, odd_folder, manifest_names)]
    first = dice.one_of(calm)(source, dice)
    try:
        second = dice.one_of(calm)(Source(first.files, source.others), dice)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, UnicodeDecodeError, RecursionError):
        return Mutant("several", first.what, first.files)  # the first has left nothing that the second could read
    return Mutant("several", f"{first.what}; {second.what}", second.files)


FAMILIES: tuple[Family, ...] = (
    flipped_bytes, sealed_flipped_bytes, sealed_flipped_bytes, cut, manifest_leaf, manifest_names, tensor_header,
    tensor_header, tensor_file, tensor_values, tensor_values, tensor_shape, tensor_dtype, tensor_names, state_leaf,
    state_leaf, state_leaf, state_leaf, state_neighbour, state_node, state_fields, state_text, array_reference,
    odd_file, odd_folder, payload, of_another_run, swapped_files, torch_generator, optimizer, optimizer_step, weights,
    specs, specs, action_log, env_arrays, env_arrays, several,
)  # fmt: skip


def make_mutant(source: Source, seed: int, index: int) -> Mutant:
    """The mutant of this number; the families take turns."""
    return FAMILIES[index % len(FAMILIES)](source, Dice(seed, index))
