"""Check the interface of an env before its first reset, and what it returns: observations and rewards."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.core.config.values import require_ids
from marl_sb3.core.envs.converted import SingleAgentEnv
from marl_sb3.core.envs.faults import RAISED, raise_in_words
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.types import Array, BoolArray

_RENAME = '; name the agents in the env, e.g. possible_agents = [f"agent_{i}" for i in range(n)]'


def require_interface(env: ParallelEnv, env_index: int = 0) -> None:
    """Check agents, spaces, metadata and the signature of `reset`.

    Raises:
        ConfigError: says what is wrong and what is accepted.
        EnvRaisedError: the env raised an exception when it was asked for a space.
    """
    require_agents(getattr(env, "possible_agents", None))
    metadata = getattr(env, "metadata", None)
    if not isinstance(metadata, Mapping):
        refuse("the env's metadata", metadata, 'a mapping, such as {"name": "my_env_v0"}', "env")
    for agent in env.possible_agents:
        for kind in ("observation_space", "action_space"):
            try:
                space = getattr(env, kind)(agent)
            except RAISED as error:
                raise_in_words(error, f"{kind}({agent!r})", f"env {env_index}")
                raise
            if not isinstance(space, spaces.Space):
                refuse(f"{kind}({agent!r})", space, "a gymnasium space", "env")
    require_seeded_reset(env.reset)
    require_seeded_reset(innermost_env(env).reset)


def innermost_env(env: ParallelEnv) -> Any:
    """Return the env below all wrappers: a `ParallelEnv`, or the `gymnasium.Env` inside a `SingleAgentEnv`."""
    inner = env.unwrapped
    return inner.env.unwrapped if isinstance(inner, SingleAgentEnv) else inner


def require_agents(agents: Any) -> None:
    """Refuse anything but a list of different agent ids. A set is refused: its order differs between processes."""
    if not isinstance(agents, Collection) or isinstance(agents, (str, set, frozenset)) or len(agents) == 0:
        refuse("the env's possible_agents", agents, "a list of agent ids, not empty", "env")
    require_ids("agent", agents, "env", _RENAME)
    twice = [agent for agent, count in Counter(agents).items() if count > 1]
    if twice:
        raise ConfigError(f"the env's possible_agents has {twice[0]!r} twice; accepted: each agent once", key="env")


def require_seeded_reset(reset: Callable[..., Any]) -> None:
    """Refuse a `reset` that cannot be called with `seed` and `options`."""
    try:
        signature = inspect.signature(reset)
    except (TypeError, ValueError):
        return  # some builtins have no signature; then the call itself fails
    try:
        signature.bind(seed=None, options=None)
    except TypeError as error:
        raise ConfigError(
            f"the env's reset takes {signature}: {error}; accepted: reset(self, seed=None, options=None)", key="env"
        ) from error


LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_NONE_UNFIT: BoolArray = np.zeros(1, dtype=np.bool_)


def _array_fault(space: spaces.Space[Any], value: Any) -> str | None:
    """Describe what is wrong with a value of a Box or MultiBinary space; the bounds of a Box are not checked."""
    array = np.asarray(value)
    if array.shape != space.shape:
        return f"has shape {array.shape}, its space says {space.shape}"
    assert space.dtype is not None
    if array.dtype != space.dtype and not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return f"has dtype {array.dtype}, its space says {space.dtype}"
    unfit = unfit_numbers(array, space.dtype)
    if not np.count_nonzero(unfit):  # for few numbers much faster than any()
        return None
    where = tuple(int(i) for i in np.argwhere(unfit)[0])
    return f"is {unfit_words(array[where], space.dtype)} at index {where}"


def unfit_numbers(array: Array, dtype: np.dtype[Any]) -> BoolArray:
    """Mark numbers that are not finite, or do not fit the space's dtype or float32, in which networks compute.

    Args:
        array: numbers of any shape.
        dtype: dtype of the space.

    Returns:
        Bool, of the array's shape; a single False if the dtypes rule such numbers out.
    """
    if array.dtype.kind == "f":
        if array.dtype == dtype and dtype.itemsize <= 4:
            return ~np.isfinite(array)
        largest = min(LARGEST_FLOAT32, float(np.finfo(dtype).max)) if dtype.kind == "f" else LARGEST_FLOAT32
        return ~(np.abs(array.astype(np.float64)) <= largest)  # `not <=` is true of NaN, too
    if array.dtype.kind in "iu" and dtype.kind in "iu" and array.dtype != dtype:
        unfit: BoolArray = (array < np.iinfo(dtype).min) | (array > np.iinfo(dtype).max)
        return unfit
    return _NONE_UNFIT


def unfit_words(number: Any, dtype: np.dtype[Any]) -> str:
    """Describe a number that `unfit_numbers` has marked."""
    if not np.isfinite(number):
        return str(number)
    if dtype.kind != "f" or dtype.itemsize < 4:
        return f"{number} (too large for {dtype}, its space's dtype)"
    return f"{number} (too large for float32, in which networks compute)"


def _integers_fault(space: spaces.Space[Any], value: Any) -> str | None:
    """Like `space.contains`, in half the time."""
    assert isinstance(space, spaces.MultiDiscrete)
    array = np.asarray(value)
    if array.shape != space.shape or array.dtype.kind not in "iu":
        return f"has shape {array.shape} and dtype {array.dtype}, its space is {space}"
    above = array - space.start
    return None if ((above >= 0) & (above < space.nvec)).all() else f"is {value!r}, which is not in {space}"


def _dict_fault(space: spaces.Space[Any], value: Any) -> str | None:
    assert isinstance(space, spaces.Dict)
    if not isinstance(value, Mapping) or set(value) != set(space.spaces):
        keys = sorted(value) if isinstance(value, Mapping) else type(value).__name__
        return f"has keys {keys}, its space says {sorted(space.spaces)}"
    for key, part in space.spaces.items():
        if fault := observation_fault(part, value[key]):
            return f"{fault} (key {key!r})"
    return None


_FAULTS: Mapping[type, Callable[[spaces.Space[Any], Any], str | None]] = {
    spaces.Box: _array_fault,
    spaces.MultiBinary: _array_fault,
    spaces.MultiDiscrete: _integers_fault,
    spaces.Dict: _dict_fault,
}


def observation_fault(space: spaces.Space[Any], value: Any) -> str | None:
    """Describe why `value` is not an observation of `space`, as the end of a sentence; None if it is one."""
    try:
        if type(space) in _FAULTS:
            return _FAULTS[type(space)](space, value)
        return None if space.contains(value) else f"is {value!r}, which is not in {space}"
    except ValueError:  # NumPy raises it for ragged lists
        return f"is {value!r}, not an array"


def reward_fault(reward: Any) -> str | None:
    """Describe why `reward` is not a finite number, as the end of a sentence; None if it is one."""
    if isinstance(reward, float) and -LARGEST_FLOAT32 <= reward <= LARGEST_FLOAT32:  # fast path: NumPy takes longer
        return None
    try:
        number = np.asarray(reward)
        finite = number.ndim == 0 and number.dtype.kind in "biuf" and bool(np.isfinite(number))
    except (TypeError, ValueError, RuntimeError):  # ragged lists, tensors with gradients
        finite = False
    if not finite:
        way = "; reward_weights=[NUMBER, ...] makes one reward of several" if getattr(reward, "shape", ()) else ""
        return f"is {reward!r}, not a finite number{way}"
    return (
        None if abs(reward) <= LARGEST_FLOAT32 else f"is {reward!r}, too large for float32, in which rewards are kept"
    )
