"""Convert values of a space to vectors as SB3's networks take them, with categories one-hot."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.types import Array


def flat_box(space: spaces.Space[Any]) -> spaces.Box:
    """Return the space of the vectors that `flat_values` returns."""
    if isinstance(space, spaces.Box):
        low, high = (bound.reshape(-1).astype(np.float32) for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=np.float32)
    return spaces.Box(0, 1, (sum(_choices(space)),), np.float32)


def flat_values(space: spaces.Space[Any], values: Array) -> Array:
    """Convert (rows, ...) values of a space to (rows, numbers) float32 vectors."""
    rows = values.reshape(len(values), -1)
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return rows.astype(np.float32)
    sizes = _choices(space)
    first = np.cumsum([0, *sizes[:-1]])
    start = np.asarray(getattr(space, "start", 0)).reshape(-1)
    flat = np.zeros((len(rows), sum(sizes)), dtype=np.float32)
    np.put_along_axis(flat, rows.astype(np.int64) - start + first, 1.0, axis=1)
    return flat


def _choices(space: Any) -> list[int]:
    """Return the length of each one-hot code; 1 for each bit."""
    if isinstance(space, spaces.MultiBinary):
        return [1] * int(np.prod(space.shape))
    return [int(n) for n in np.asarray(space.nvec).reshape(-1)] if hasattr(space, "nvec") else [int(space.n)]
