"""Action masks: which spaces have them, and where envs put them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marl_sb3.envs.single_agent import MASK
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
