"""Observations and actions in the form that arrays and SB3 can hold: masks apart, nested observations flat."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.core.config.algorithms import action_form
from marl_sb3.core.envs.converted import MASK
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID

OBSERVATION = "observation"
_NO_INFO: Mapping[str, Any] = {}


def choices_of(space: spaces.Space[Any]) -> tuple[int, ...] | None:
    """How many values each choice has, of actions in the order of a mask; None for spaces of other kinds.

    Discrete(n) is one choice of n, MultiDiscrete one of each number in `nvec`, MultiBinary(k) k choices of 2. A mask
    has an entry for each value of each choice, as for sb3-contrib's MaskablePPO.
    """
    if isinstance(space, spaces.Discrete):
        return (int(space.n),)
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(space.nvec.reshape(-1).tolist())
    if isinstance(space, spaces.MultiBinary):
        return (2,) * int(np.prod(space.shape))
    return getattr(space, "choices", None) or None  # of actions of several parts, those that are choices


def policy_actions(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space in which policies choose actions of an env's space: itself, or that of a form of it."""
    return (action_form(space) if isinstance(space, _Composite) else None) or space


def env_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the env's action space for one of `policy_actions`."""
    return getattr(space, "of_env", space)


def env_action(space: spaces.Space[Any], action: Any) -> Any:
    """Return the env's action for one in a space of `policy_actions`; a list of them for a batch of such vectors."""
    return space.to_env(action) if hasattr(space, "to_env") else action


def is_masked(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> bool:
    """Whether observations are PettingZoo's pairs of an observation and a mask of the agent's actions."""
    if not isinstance(observation_space, spaces.Dict) or set(observation_space.spaces) != {OBSERVATION, MASK}:
        return False
    choices = choices_of(action_space)
    return choices is not None and observation_space[MASK].shape == (sum(choices),)


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
    for path, part in _leaves(space):
        name = "/".join(map(str, path))
        if name in parts:
            raise ConfigError(f"two parts of the observation space would be called {name!r}: {space}", key="env")
        parts[name] = part
    return spaces.Dict(list(parts.items()))  # pairs keep their order; `sort_keys` is of Gymnasium 1.4


def _leaves(
    space: spaces.Space[Any], above: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], spaces.Space[Any]]]:
    """Yield the parts that have no parts, with their paths of keys and indices."""
    if isinstance(space, _Composite):
        for key, part in enumerate(space.spaces) if isinstance(space, spaces.Tuple) else space.spaces.items():
            yield from _leaves(part, (*above, key))
    else:
        yield above, space


def flat_observation(space: spaces.Space[Any], observation: Any) -> dict[str, Any]:
    """The parts of an observation of a nested space, by the names that `flat_space` gives them; nothing is copied."""
    return {"/".join(map(str, path)): reduce(getitem, path, observation) for path, _ in _leaves(space)}


def named_parts(observation: Any) -> dict[str, Any]:
    """The parts of a nested observation by their names, without its space: mappings and tuples are taken apart."""
    parts: dict[str, Any] = {}
    for name, value in enumerate(observation) if isinstance(observation, tuple) else observation.items():
        if isinstance(value, (Mapping, tuple)):
            parts |= {f"{name}/{key}": part for key, part in named_parts(value).items()}
        else:
            parts[str(name)] = value
    return parts


class EnvView:
    """The agents and spaces of an env as policies see them: masks apart, nested observations flat, actions as arrays.

    Args:
        env: its observations may be pairs of an observation and an action mask, or nested; others stay as they are.

    Raises:
        ConfigError: two parts of an observation would have the same name.
    """

    def __init__(self, env: Any) -> None:
        agents: list[AgentID] = list(env.possible_agents)
        self.possible_agents = agents  # of the env
        self._action_spaces = {agent: policy_actions(env.action_space(agent)) for agent in agents}
        self._spaces: dict[AgentID, Any] = {agent: env.observation_space(agent) for agent in agents}
        self._masked = {agent for agent in agents if is_masked(self._spaces[agent], self._action_spaces[agent])}
        self._spaces |= {agent: self._spaces[agent][OBSERVATION] for agent in self._masked}
        self._nested = {agent: space for agent, space in self._spaces.items() if is_nested(space)}
        self._spaces |= {agent: flat_space(space) for agent, space in self._nested.items()}
        # whether policies see the observations of some agent in another form
        self.differs = bool(self._masked or self._nested)
        # whether policies choose the actions of some agent in another form
        self.acts_otherwise = any(hasattr(space, "to_env") for space in self._action_spaces.values())

    def observation_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The space of what the agent's policy observes."""
        space: spaces.Space[Any] = self._spaces[agent]
        return space

    def action_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The space in which the agent's policy acts."""
        return self._action_spaces[agent]

    def to_env(self, actions: Mapping[AgentID, Any]) -> dict[AgentID, Any]:
        """Return actions of policies as the env takes them."""
        return {agent: env_action(self._action_spaces[agent], action) for agent, action in actions.items()}

    def of(
        self, observations: Mapping[AgentID, Any], infos: Mapping[AgentID, Any]
    ) -> tuple[dict[AgentID, Any], dict[AgentID, Any]]:
        """Return the observations of an env as policies see them, and the infos with the masks under `action_mask`."""
        seen, with_masks = dict(observations), dict(infos)
        for agent in self._masked.intersection(observations):
            seen[agent] = observations[agent][OBSERVATION]
            with_masks[agent] = {**infos.get(agent, _NO_INFO), MASK: observations[agent][MASK]}
        for agent in self._nested.keys() & observations.keys():
            seen[agent] = flat_observation(self._nested[agent], seen[agent])
        return seen, with_masks
