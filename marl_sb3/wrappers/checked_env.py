"""Refuse what an env may not return, in the step in which it returns it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marl_sb3.errors import EnvError
from marl_sb3.types import AgentID


def _array_fault(space: spaces.Space[Any], value: Any) -> str | None:
    """What is wrong with a value of a Box or MultiBinary space; bounds of a Box are the env's own business."""
    array = np.asarray(value)
    if array.shape != space.shape:
        return f"has shape {array.shape}, its space says {space.shape}"
    assert space.dtype is not None
    if not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return f"has dtype {array.dtype}, its space says {space.dtype}"
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        return f"is {array[where]} at index {where}"
    return None


def _integers_fault(space: spaces.Space[Any], value: Any) -> str | None:
    """As `space.contains`, in half the time."""
    assert isinstance(space, spaces.MultiDiscrete)
    array = np.asarray(value)
    if array.shape != space.shape or array.dtype.kind not in "iu":
        return f"has shape {array.shape} and dtype {array.dtype}, its space is {space}"
    above = array - space.start
    return None if ((above >= 0) & (above < space.nvec)).all() else f"is {value!r}, which is not in {space}"


def _member_fault(space: spaces.Space[Any], value: Any) -> str | None:
    return None if space.contains(value) else f"is {value!r}, which is not in {space}"


def _dict_fault(space: spaces.Space[Any], value: Any) -> str | None:
    assert isinstance(space, spaces.Dict)
    if not isinstance(value, Mapping) or set(value) != set(space.spaces):
        keys = sorted(value) if isinstance(value, Mapping) else type(value).__name__
        return f"has keys {keys}, its space says {sorted(space.spaces)}"
    for key, part in space.spaces.items():
        fault = observation_fault(part, value[key])
        if fault:
            return f"{fault} (key {key!r})"
    return None


_FAULTS: Mapping[type, Callable[[spaces.Space[Any], Any], str | None]] = {
    spaces.Box: _array_fault,
    spaces.MultiBinary: _array_fault,
    spaces.MultiDiscrete: _integers_fault,
    spaces.Dict: _dict_fault,
}


def observation_fault(space: spaces.Space[Any], value: Any) -> str | None:
    """What keeps `value` from being an observation of `space`, in words; None if nothing does."""
    return _FAULTS.get(type(space), _member_fault)(space, value)


def _reward_fault(reward: Any) -> str | None:
    try:
        finite = np.ndim(reward) == 0 and np.isfinite(reward)
    except TypeError:
        finite = False
    return None if finite else f"is {reward!r}, not a finite number"


class CheckedEnv(BaseParallelWrapper):  # type: ignore[misc]
    """Checks what the env returns for each agent that acted: all of it there, of the space's shape, and finite.

    Raises:
        EnvError: from `reset` and `step`; names env, episode, step, agent, quantity and value.
    """

    def __init__(self, env: ParallelEnv, env_index: int = 0) -> None:
        super().__init__(env)
        self.env_index = env_index
        self.episode = -1
        self.episode_step = 0

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Reset the env and check the first observations."""
        self.episode += 1
        self.episode_step = 0
        returned = self.env.reset(seed=seed, options=options)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise self._error(f"reset() returned {type(returned).__name__}, not (observations, infos)")
        observations, infos = returned
        if not self.env.agents:
            raise self._error("no agent is live after reset()")
        strangers = set(self.env.agents) - set(self.env.possible_agents)
        if strangers:
            raise self._error(f"agent {min(strangers)!r} is not in possible_agents {self.env.possible_agents}")
        for agent in self.env.agents:
            self._check_observation(agent, observations)
        return observations, infos

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[Mapping[str, Any], ...]:
        """Step the env and check what it says about the agents that acted or are live now."""
        self.episode_step += 1
        returned = self.env.step(actions)
        if not (isinstance(returned, tuple) and len(returned) == 5):
            raise self._error(f"step() returned {type(returned).__name__}, not a tuple of 5 dictionaries")
        observations, rewards, terminated, truncated, infos = returned
        for agent in actions:
            self._check_observation(agent, observations)
            fault = _reward_fault(self._of(agent, rewards, "reward"))
            if fault:
                raise self._error(f"reward {fault}", agent)
            self._of(agent, terminated, "terminated flag")
            self._of(agent, truncated, "truncated flag")
        for agent in self.env.agents:
            if agent not in actions:
                self._check_observation(agent, observations)
        if not isinstance(infos, Mapping):
            raise self._error(f"infos are {type(infos).__name__}, not a dictionary by agent")
        return observations, rewards, terminated, truncated, infos

    def _check_observation(self, agent: AgentID, observations: Mapping[AgentID, Any]) -> None:
        space = self.env.observation_space(agent)
        fault = observation_fault(space, self._of(agent, observations, "observation"))
        if fault:
            raise self._error(f"observation {fault}", agent)

    def _of(self, agent: AgentID, values: Any, what: str) -> Any:
        if not isinstance(values, Mapping) or agent not in values:
            known = list(values) if isinstance(values, Mapping) else type(values).__name__
            raise self._error(f"{what} is missing (there is one for {known})", agent)
        return values[agent]

    def _error(self, problem: str, agent: AgentID | None = None) -> EnvError:
        where = f"env {self.env_index}, episode {self.episode}, step {self.episode_step}"
        return EnvError(f"{where}, agent {agent!r}: {problem}" if agent else f"{where}: {problem}")
