"""Mutants with changed bytes, manifests and tensors."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from checkpoint_source import Dice, Source
from json_trees import HOSTILE, TEXTS, nodes, path_text, remove, replace, shown, to_json
from mutant_files import DTYPES, MANIFEST, STATE, UNKNOWN_DTYPES, Mutant, as_bytes, sealed
from tensor_files import extremes, pack, tensors_of, to_safetensors, unpack, width


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
    data, what = _flipped(as_bytes(source.files[name]), dice)
    return Mutant("bytes flipped", f"{name}: {what}", {**source.files, name: data})


def sealed_flipped_bytes(source: Source, dice: Dice) -> Mutant:
    """Any byte; the manifest agrees. Half of them in the headers of the tensors."""
    name = dice.one_of([STATE, *source.tensor_files])
    data = as_bytes(source.files[name])
    if name != STATE and dice.number(2):
        end = 8 + int.from_bytes(data[:8], "little")
        head, what = _flipped(data[:end], dice)
        return Mutant("bytes flipped, sealed", f"{name}, header: {what}", source.with_file(name, head + data[end:]))
    data, what = _flipped(data, dice)
    return Mutant("bytes flipped, sealed", f"{name}: {what}", source.with_file(name, data))


def cut(source: Source, dice: Dice) -> Mutant:
    """Too short, empty or too long."""
    name = dice.one_of(sorted(source.files))
    data = as_bytes(source.files[name])
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
        what = f"without {path_text(path)}"
    else:
        replace(tree, path, value)
        what = f"{path_text(path)} = {shown(value)}"
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
    manifest = json.loads(as_bytes(files[MANIFEST]))
    manifest["files"][evil] = {"size": len(as_bytes(data)), "sha256": hashlib.sha256(as_bytes(data)).hexdigest()}
    return Mutant("names", f"{evil!r} for {victim}", {**files, MANIFEST: to_json(manifest)})


def tensor_header(source: Source, dice: Dice) -> Mutant:
    """Lies in the header of a safetensors file: offsets, shapes, dtypes, names."""
    file = dice.one_of(source.tensor_files)
    header, payload = unpack(as_bytes(source.files[file]))
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
    dtype = dice.one_of([*DTYPES, *UNKNOWN_DTYPES, None, 1, [], {}])
    header[name]["dtype"] = dtype
    return f"dtype {dtype!r}"


def _lie_name(header: Any, name: str, _: int, dice: Dice) -> str:
    other = dice.one_of([*map(str, TEXTS), "__metadata__", name + " ", name.upper()])
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
    header, payload = unpack(as_bytes(source.files[file]))
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
    dtype, shape, data = tensors_of(as_bytes(source.files[file]))[name]
    kind = DTYPES[dtype]
    values = np.frombuffer(data, dtype=kind).copy()
    what = "nothing"
    if values.size:
        how, value = dice.number(5), dice.one_of(extremes(kind))
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
    dtype, shape, data = tensors_of(as_bytes(source.files[file]))[name]
    longer = [shape[0] + 1, *shape[1:]] if shape else [2]
    others = [[], [0], [1], [0, 2**40], [*shape, 1], [1, *shape], shape[::-1], shape[1:], longer, [0, *shape[1:]],
              [2, *shape], [1] * 40]  # fmt: skip
    other = dice.one_of(others)
    size = int(np.prod([min(n, 10**6) for n in other], dtype=np.int64)) * width(dtype)
    content = (data * (size // max(1, len(data)) + 1))[:size].ljust(size, b"\x00")
    return Mutant("tensor shape", f"{file}, {name}: {other}", source.with_tensor(file, name, (dtype, other, content)))


def tensor_dtype(source: Source, dice: Dice) -> Mutant:
    """Another dtype, the content with it."""
    file, name = dice.one_of(source.arrays)
    dtype, shape, data = tensors_of(as_bytes(source.files[file]))[name]
    other = dice.one_of([each for each in DTYPES if each != dtype])
    with np.errstate(all="ignore"):
        content = np.frombuffer(data, dtype=DTYPES[dtype]).astype(DTYPES[other]).tobytes()
    return Mutant("tensor dtype", f"{file}, {name}: {other}", source.with_tensor(file, name, (other, shape, content)))


def tensor_names(source: Source, dice: Dice) -> Mutant:
    """Tensors that are missing, too many, or under each other's names."""
    file, name = dice.one_of(source.arrays)
    tensors = tensors_of(as_bytes(source.files[file]))
    how = dice.number(3)
    if how == 0:
        del tensors[name]
    elif how == 1:
        tensors[dice.one_of([*map(str, TEXTS), name + "x"])] = tensors[name]
    else:
        other = dice.one_of(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    what = f"{file}, {name}: {('missing', 'twice', 'swapped')[how]}"
    return Mutant("tensor names", what, source.with_file(file, to_safetensors(tensors)))
