"""Compare episodes by checksums of everything that their steps returned."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

Fingerprint = list[dict[str, int]]  # per step: what -> checksum


class Difference(NamedTuple):
    """Where two episodes differ first."""

    step: int
    what: str


def checksum(value: Any) -> int:
    """A checksum of numbers, arrays, and lists and mappings of them; other objects count by their type."""
    return zlib.crc32(_bytes(value))


def _bytes(value: Any) -> bytes:
    if type(value) in (bool, int, float):  # most rewards and flags: NumPy takes ten times longer
        return repr(value).encode()
    if isinstance(value, Mapping):
        return b"".join(f"{key}=".encode() + _bytes(value[key]) for key in sorted(value, key=str))
    if isinstance(value, (list, tuple)):
        return b"[" + b"".join(map(_bytes, value)) + b"]"
    array = np.asarray(value)
    if array.dtype.kind in "biufc":
        return f"{array.dtype}{array.shape}".encode() + array.tobytes()
    return (value if isinstance(value, str) else type(value).__name__).encode()


def step_fingerprint(agents: Any, observations: Any, rewards: Any, terminated: Any, truncated: Any) -> dict[str, int]:
    """The checksums of a step, by what they are of."""
    parts = {"observation": observations, "reward": rewards, "terminated": terminated, "truncated": truncated}
    found = {"agents": checksum([str(agent) for agent in agents])}
    for name, part in parts.items():
        if isinstance(part, Mapping):
            found.update({f"{name} of {agent}": checksum(value) for agent, value in part.items()})
    return found


def difference(one: Fingerprint, other: Fingerprint) -> Difference | None:
    """Where two episodes differ first, as far as both were played; None if they agree."""
    for number, (first, second) in enumerate(zip_longest(one, other)):
        if first is None or second is None:
            return None  # one of them was cut earlier
        if first != second:
            names = [*first, *(name for name in second if name not in first)]
            return Difference(number, next(name for name in names if first.get(name) != second.get(name)))
    return None
