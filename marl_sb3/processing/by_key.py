"""Spaces and batches of observations, part by part: the keys of a Dict, or the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import spaces

from marl_sb3.types import Array, Observations

Space = spaces.Space[Any]
WHOLE = ""  # the key of an observation that has none


def parts_of(space: Space) -> dict[str, Space]:
    """The spaces of the keys of a Dict; another space is its only part."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {WHOLE: space}


def with_parts(space: Space, parts: Mapping[str, Space]) -> Space:
    """The space with these parts in place of its own."""
    return (
        spaces.Dict({**space.spaces, **parts}, sort_keys=False)
        if isinstance(space, spaces.Dict)
        else parts.get(WHOLE, space)
    )


def part(seen: Observations, key: str) -> Array:
    """The array of a key."""
    return seen[key] if isinstance(seen, dict) else seen


def map_parts(seen: Observations, functions: Mapping[str, Callable[[Array], Array]]) -> Observations:
    """Apply a function to each of some parts; the others stay."""
    if isinstance(seen, dict):
        return {key: functions[key](array) if key in functions else array for key, array in seen.items()}
    return functions[WHOLE](seen) if WHOLE in functions else seen


def named(key: str) -> str:
    """A part in a message."""
    return f"key {key!r}: " if key else ""
