"""Handle spaces and batches of observations by part: each key of a Dict is a part; any other space is one part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import spaces

from marl_sb3.types import Array, Observations

Space = spaces.Space[Any]
WHOLE = ""  # the key of an observation that has none


def parts_of(space: Space) -> dict[str, Space]:
    """Return the space of each key of a Dict; for any other space, that space alone."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {WHOLE: space}


def with_parts(space: Space, parts: Mapping[str, Space]) -> Space:
    """Return a space with these parts instead of those of `space`."""
    return (
        spaces.Dict(list({**space.spaces, **parts}.items()))
        if isinstance(space, spaces.Dict)
        else parts.get(WHOLE, space)
    )


def part(seen: Observations, key: str) -> Array:
    """Return the array of a part."""
    return seen[key] if isinstance(seen, dict) else seen


def map_parts(seen: Observations, functions: Mapping[str, Callable[[Array], Array]]) -> Observations:
    """Apply a function to some parts of a batch; the other parts stay unchanged."""
    if isinstance(seen, dict):
        return {key: functions[key](array) if key in functions else array for key, array in seen.items()}
    return functions[WHOLE](seen) if WHOLE in functions else seen


def named(key: str) -> str:
    """Name a part in a message."""
    return f"key {key!r}: " if key else ""
