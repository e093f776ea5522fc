"""Batches of observations: one array, or one per key of a `Dict` space, handled alike."""

from __future__ import annotations

from collections.abc import Callable

from marl_sb3.types import Array, Observations


def map_arrays(function: Callable[[Array], Array], observations: Observations) -> Observations:
    """Apply `function` to the array, or to each key's array."""
    if isinstance(observations, dict):
        return {key: function(array) for key, array in observations.items()}
    return function(observations)


def to_rows(observations: Observations) -> Observations:
    """(E, A, ...) to (E * A, ...): row `e * A + a` is agent `a` of env `e`."""
    return map_arrays(lambda array: array.reshape(-1, *array.shape[2:]), observations)
