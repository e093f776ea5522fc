"""Save and restore envs by their own `get_state() -> plain data` and `set_state(data)`, without a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from marl_sb3.envs.faults import ask_for_state
from marl_sb3.storage.state import State
from marl_sb3.wrappers import CheckedEnv
from marl_sb3.wrappers.layers import layers


def own_state(env: Any) -> State | None:
    """Return the state from the env's own `get_state`; None if it has none, or if a checkpoint cannot hold the state.

    Args:
        env: in the wrappers that `wrap` applied.
    """
    inner = _made_by_factory(env)
    if not all(callable(getattr(type(inner), name, None)) for name in ("get_state", "set_state")):
        return None  # looked up in the class: wrappers forward attributes to inner envs, which lack their state
    return ask_for_state(inner.get_state, env.where_and_seed())


def set_own_state(env: Any, state: Mapping[str, Any]) -> str | None:
    """Call the env's own `set_state`, and check the result; returns the fault, or None."""
    inner = _made_by_factory(env)
    inner.set_state(state)
    if not _same_tree(inner.get_state(), state):
        return "after set_state(), its get_state() returns another state"
    return None


def _made_by_factory(env: Any) -> Any:
    return next(layer for layer in layers(env) if isinstance(layer, CheckedEnv)).env


def _same_tree(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return set(one) == set(other) and all(_same_tree(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same_tree, one, other))
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)
