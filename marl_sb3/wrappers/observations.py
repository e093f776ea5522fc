"""Observations in the form that arrays and SB3 can hold: action masks apart, nested observations flat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marl_sb3.envs.single_agent import MASK
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID

OBSERVATION = "observation"
_NO_INFO: Mapping[str, Any] = {}


def choices_of(space: spaces.Space[Any]) -> tuple[int, ...] | None:
    """How many actions each choice has, in the order of a mask; None for spaces that have no masks.

    Discrete(n) is one choice of n, MultiDiscrete one of each number in `nvec`, MultiBinary(k) k choices of 2. A mask
    has an entry for each action of each choice, as for sb3-contrib's MaskablePPO.
    """
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(space.nvec.reshape(-1).tolist())
    if isinstance(space, spaces.MultiBinary):
        return (2,) * int(np.prod(space.shape))
    return None


def is_masked(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> bool:
    """Whether observations are PettingZoo's pairs of an observation and a mask of the agent's actions."""
    if not isinstance(observation_space, spaces.Dict) or set(observation_space.spaces) != {OBSERVATION, MASK}:
        return False
    choices = choices_of(action_space)
    return choices is not None and observation_space[MASK].shape == (sum(choices),)


class ActionMaskEnv(BaseParallelWrapper):  # type: ignore[misc]
    """Takes masks out of observations `{"observation": ..., "action_mask": ...}` and puts them into the infos.

    Policies then observe what is under `observation`.

    Args:
        env: an env in which some agents have such observations; those of the others pass unchanged.
    """

    def __init__(self, env: ParallelEnv) -> None:
        super().__init__(env)
        self._masked = frozenset(masked_agents(env))

    def observation_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The space of the inner observation."""
        space: spaces.Space[Any] = self.env.observation_space(agent)
        return space[OBSERVATION] if agent in self._masked else space  # type: ignore[index]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Reset the env."""
        return self._split(*self.env.reset(seed=seed, options=options))

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[Mapping[str, Any], ...]:
        """Step the env."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        observations, infos = self._split(observations, infos)
        return observations, rewards, terminated, truncated, infos

    def _split(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, dict[str, Any]]
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        inner, with_masks = dict(observations), dict(infos)
        for agent in self._masked.intersection(observations):
            inner[agent] = observations[agent][OBSERVATION]
            with_masks[agent] = {**infos.get(agent, _NO_INFO), MASK: observations[agent][MASK]}
        return inner, with_masks


def masked_agents(env: ParallelEnv) -> list[AgentID]:
    """The agents whose observations hold masks."""
    return [agent for agent in env.possible_agents if is_masked(env.observation_space(agent), env.action_space(agent))]


_Composite = (spaces.Dict, spaces.Tuple)


def is_nested(space: spaces.Space[Any]) -> bool:
    """Whether a space is a Tuple, or a Dict that has a Dict or a Tuple in it."""
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else ()
    return isinstance(space, spaces.Tuple) or any(isinstance(part, _Composite) for part in parts)


def flat_space(space: spaces.Space[Any]) -> spaces.Dict:
    """The parts of a nested space in one Dict, in their order.

    The part `b` of the part `a` is called `a/b`; the parts of a Tuple are called `0`, `1`, ...

    Raises:
        ConfigError: two parts would have the same name.
    """
    parts: dict[str, spaces.Space[Any]] = {}
    for name, part in _leaves(space, ""):
        if name in parts:
            raise ConfigError(f"two parts of the observation space would be called {name!r}: {space}", key="env")
        parts[name] = part
    return spaces.Dict(list(parts.items()))  # pairs keep their order; `sort_keys` is of Gymnasium 1.4


def _leaves(space: spaces.Space[Any], prefix: str) -> Iterable[tuple[str, spaces.Space[Any]]]:
    for name, part in _parts(space):
        if isinstance(part, _Composite):
            yield from _leaves(part, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", part


def _parts(space: spaces.Space[Any]) -> Iterable[tuple[Any, spaces.Space[Any]]]:
    """Keys and spaces of a Dict, indices and spaces of a Tuple."""
    return enumerate(space.spaces) if isinstance(space, spaces.Tuple) else space.spaces.items()  # type: ignore[attr-defined]


def flat_observation(space: spaces.Space[Any], observation: Any) -> dict[str, Any]:
    """The parts of an observation of a nested space, by the names that `flat_space` gives them; nothing is copied."""
    parts: dict[str, Any] = {}
    _collect(space, observation, "", parts)
    return parts


def _collect(space: spaces.Space[Any], observation: Any, prefix: str, parts: dict[str, Any]) -> None:
    for name, part in _parts(space):
        if isinstance(part, _Composite):
            _collect(part, observation[name], f"{prefix}{name}/", parts)
        else:
            parts[f"{prefix}{name}"] = observation[name]


def named_parts(observation: Any) -> dict[str, Any]:
    """The parts of a nested observation by their names, without its space: mappings and tuples are taken apart."""
    parts: dict[str, Any] = {}
    for name, value in enumerate(observation) if isinstance(observation, tuple) else observation.items():
        if isinstance(value, (Mapping, tuple)):
            parts |= {f"{name}/{key}": part for key, part in named_parts(value).items()}
        else:
            parts[str(name)] = value
    return parts


class FlatObservationsEnv(BaseParallelWrapper):  # type: ignore[misc]
    """Makes nested observations flat, without loss.

    Args:
        env: an env in which some agents have nested observations; those of the others pass unchanged.

    Raises:
        ConfigError: two parts of an observation would have the same name.
    """

    def __init__(self, env: ParallelEnv) -> None:
        super().__init__(env)
        self._nested = {agent: env.observation_space(agent) for agent in nested_agents(env)}
        self._flat = {agent: flat_space(space) for agent, space in self._nested.items()}

    def observation_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The flat space."""
        return self._flat.get(agent) or self.env.observation_space(agent)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Reset the env."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._flattened(observations), infos

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[Mapping[str, Any], ...]:
        """Step the env."""
        observations, *others = self.env.step(actions)
        return (self._flattened(observations), *others)

    def _flattened(self, observations: Mapping[AgentID, Any]) -> dict[AgentID, Any]:
        nested = self._nested
        return {
            agent: flat_observation(nested[agent], observation) if agent in nested else observation
            for agent, observation in observations.items()
        }


def nested_agents(env: ParallelEnv) -> list[AgentID]:
    """The agents whose observations are nested."""
    return [agent for agent in env.possible_agents if is_nested(env.observation_space(agent))]
