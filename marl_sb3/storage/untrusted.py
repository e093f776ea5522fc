"""Read files that a stranger may have written: only regular files, only JSON within limits; nothing is evaluated."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from marl_sb3.errors import CheckpointError
from marl_sb3.storage.regular import open_regular

_MAX_DEPTH = 100  # of a tree: functions that walk through it call themselves
_MAX_DIGITS = 4300  # of an integer; the time to convert it grows with the square

Hook = Callable[[dict[str, Any]], Any]  # returns what replaces a mapping


@contextmanager
def opened(path: Path, limit: int, size: int | None = None) -> Iterator[FileIO]:
    """Open a regular file for reading, unbuffered; links are not followed.

    Args:
        path: the file; messages contain its name without the folder.
        limit: largest accepted size in bytes.
        size: expected size in bytes; None: any.

    Raises:
        CheckpointError: it is not a regular file, cannot be read, or has another size.
    """
    name = path.name
    try:
        with FileIO(path, opener=open_regular) as file:
            found = os.fstat(file.fileno()).st_size
            if found > limit:
                raise CheckpointError(f"{name} has {found} bytes; accepted: at most {limit}")
            if size not in (None, found):
                raise CheckpointError(f"{name} has {found} bytes; the manifest says {size}")
            yield file
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror}") from error


def read_bytes(path: Path, limit: int, size: int | None = None) -> bytes:
    """Read a file; see `opened` for arguments and errors."""
    with opened(path, limit, size) as file:
        return file.readall()[: limit + 1]


def parse_json(name: str, data: bytes, hook: Hook | None = None) -> Any:
    """Parse JSON; `hook` may replace each mapping.

    Raises:
        CheckpointError: it is not valid JSON, has a name twice or a number that is not finite, or is nested too deep.
    """

    def mapping(pairs: list[tuple[str, Any]]) -> Any:
        return unique(pairs) if hook is None else hook(unique(pairs))

    try:
        tree = json.loads(data.decode(), parse_int=_integer, object_pairs_hook=mapping)
    except ValueError as error:  # invalid JSON or UTF-8, or a number with too many digits
        raise CheckpointError(f"{name} is not valid JSON: {error}") from error
    _require_sound(name, tree)
    return tree


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number of more than {_MAX_DIGITS} digits")
    return int(digits)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a mapping of pairs.

    Raises:
        ValueError: a name is there twice.
    """
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a name is there twice")
    return mapping


def _require_sound(name: str, tree: Any) -> None:
    """Refuse numbers that are not finite, and trees too deep for recursion."""
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
