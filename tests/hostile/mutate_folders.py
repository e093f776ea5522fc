"""Mutants with other files in the folder: links, pipes, huge files, pickles, files of other runs."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import zipfile
import zlib
from typing import Any

import numpy as np
from checkpoint_source import Dice, Source
from json_trees import to_json
from mutant_files import ARRAYS, MANIFEST, STATE, Files, Mutant, Odd, as_bytes, sealed
from tensor_files import pack, tensors_of


def odd_file(source: Source, dice: Dice) -> Mutant:
    """Something that is no regular file, under a name that is allowed; the manifest says what it should be."""
    name = dice.one_of(sorted(source.files))
    data = as_bytes(source.files[name])
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
    name, numbers = sorted(tensors_of(as_bytes(source.files[file])) or ["x"])[0], (size - 1000) // 4
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
