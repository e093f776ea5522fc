"""Join the states of batches to the state of one large batch, and split such a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_sb3.storage.state import State
from marl_sb3.types import Array


def joined(states: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Join values of batches: those with an item for each env are put one after the other.

    Arrays that differ in their other axes are filled up with zeros.

    Args:
        states: trees of plain data, one of each batch.
        sizes: number of envs of each batch.
    """
    first = states[0]
    if isinstance(first, Mapping):
        return {key: joined([state[key] for state in states], sizes) for key in first}
    if isinstance(first, list) and _by_env(states, sizes):
        return [item for state in states for item in state]
    if isinstance(first, np.ndarray) and first.ndim and _by_env(states, sizes):
        return np.concatenate(_same_width(states))
    return first


def _by_env(states: Sequence[Any], sizes: Sequence[int]) -> bool:
    return all(len(state) == size for state, size in zip(states, sizes, strict=True))


def _same_width(arrays: Sequence[Array]) -> list[Array]:
    widths = [max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True)]
    return [
        np.pad(array, [(0, 0), *((0, width - size) for width, size in zip(widths, array.shape[1:], strict=True))])
        for array in arrays
    ]


def split(state: Any, num_envs: int, rows: slice) -> Any:
    """Return the part of a state of `num_envs` envs that belongs to some of them."""
    if isinstance(state, Mapping):
        return {key: split(value, num_envs, rows) for key, value in state.items()}
    if isinstance(state, list):
        return state[rows] if len(state) == num_envs else [split(item, num_envs, rows) for item in state]
    if isinstance(state, np.ndarray) and state.ndim and len(state) == num_envs:
        return state[rows]
    return state


def joined_state(states: Sequence[State], sizes: Sequence[int]) -> State:
    """Join what `BatchedVecEnv.get_state` has returned for each batch, except for `observations` and `action_masks`."""
    own = [state["own"] for state in states]
    return {
        **joined(
            [{key: state[key] for key in ("run_seed", "episodes", "episode_steps", "to_act")} for state in states],
            sizes,
        ),
        "settings": [settings for state in states for settings in state["settings"]],
        "own": None if any(one is None for one in own) else joined(own, sizes),
    }
