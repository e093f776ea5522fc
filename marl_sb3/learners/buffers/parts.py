"""The parts of observations and spaces, as buffers handle them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gymnasium import spaces

from marl_sb3.types import Array, Observations
from marl_sb3.vec_env.action_log import require_possible


def pairs(own: Any, given: Observations) -> Iterator[tuple[Array, Array]]:
    """Pair the arrays of two batches of observations, part by part."""
    if isinstance(given, dict):
        yield from ((own[key], given[key]) for key in own)
    else:
        yield own, given


def require_categories(array: Array, space: spaces.Space[Any], where: str) -> None:
    """Refuse numbers outside a space of categories: they are indices into arrays. A Box may hold any numbers.

    Args:
        array: (..., *space.shape), or with all axes of the space in one.
        space: of the numbers.
        where: the place of the array in a checkpoint, for the message.

    Raises:
        CheckpointError: a number is not in the space.
    """
    if not isinstance(space, spaces.Box):
        require_possible(array.reshape(-1, *(space.shape or ())), space, where)
