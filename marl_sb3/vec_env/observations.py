"""Batches of observations: one array, or one per key of a `Dict` space, handled alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.groups import AgentGroup


def map_arrays(function: Callable[[Array], Array], observations: Observations) -> Observations:
    """Apply `function` to the array, or to each key's array."""
    if isinstance(observations, dict):
        return {key: function(array) for key, array in observations.items()}
    return function(observations)


def to_rows(observations: Observations) -> Observations:
    """Reshape (E, A, ...) to (E * A, ...): row `e * A + a` is agent `a` of env `e`."""
    return map_arrays(lambda array: array.reshape(-1, *array.shape[2:]), observations)


def zero_observations(groups: Sequence[AgentGroup], num_envs: int) -> tuple[Observations, ...]:
    """Return zeros of shape (E, A_group, ...) per group.

    Raises:
        ConfigError: observations of a space cannot be held in arrays.
    """
    return tuple(_zeros_of_group(group, num_envs) for group in groups)


def zeros_as(groups: Sequence[Observations]) -> tuple[Observations, ...]:
    """Return zeros of the shapes and dtypes of these observations, in less time than `zero_observations` takes."""
    return tuple(map_arrays(lambda array: np.zeros(array.shape, array.dtype), group) for group in groups)


def _zeros_of_group(group: AgentGroup, num_envs: int) -> Observations:
    try:
        return _zeros(group.observation_space, (num_envs, len(group.agents)))
    except ConfigError as error:
        raise ConfigError(f"agents {', '.join(group.agents)}: {error}", key="env") from None


def _zeros(space: spaces.Space[Any], shape: tuple[int, int]) -> Observations:
    if isinstance(space, spaces.Dict):
        return {key: _zeros_of_part(part, shape) for key, part in space.spaces.items()}
    return _zeros_of_part(space, shape)


def _zeros_of_part(space: spaces.Space[Any], shape: tuple[int, int]) -> Array:
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise ConfigError(
            f"observation space {space}: accepted: Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple of these"
        )
    return np.zeros((*shape, *(space.shape or ())), dtype=space.dtype)


def same(one: Sequence[Observations], other: Sequence[Observations]) -> bool:
    """Whether two sets of observations agree to the last bit."""
    return all(np.array_equal(a, b) for a, b in zip(_arrays(one), _arrays(other), strict=True))


def stacked(of_envs: Sequence[Observations]) -> Observations:
    """Stack the observations of E envs to one batch, (E, ...)."""
    first = of_envs[0]
    if isinstance(first, dict):
        return {key: np.stack([observations[key] for observations in of_envs]) for key in first}
    return np.stack(of_envs)  # type: ignore[arg-type]


def taken(observations: Observations, place: int | tuple[int, ...]) -> Any:
    """Return the observation at a place."""
    return map_arrays(lambda array: array[place], observations)


def _arrays(groups: Sequence[Observations]) -> list[Array]:
    return [array for group in groups for array in (group.values() if isinstance(group, dict) else [group])]


def put(observation: Any, array: Observations, place: int | tuple[int, int]) -> None:
    """Write one agent's observation into its place in (E, A_group, ...) or (A_group, ...)."""
    if isinstance(array, dict):
        for key in array:
            array[key][place] = observation[key]
    else:
        array[place] = observation


def zeros_where_idle(observations: Observations, to_act: BoolArray) -> Observations:
    """Return a copy with zeros where an agent does not act next; the original may hold final observations there."""

    def filled(array: Array) -> Array:
        array = array.copy()
        array[~to_act] = 0
        return array

    return map_arrays(filled, observations)
