"""Nested observations as one level of named parts, which SB3 and arrays can hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID

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
