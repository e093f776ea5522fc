"""Draw random actions that are the same whenever an episode is played again."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.checkup.evidence import mapping
from marl_sb3.envs.single_agent import MASK
from marl_sb3.types import AgentID


class RandomActions:
    """Draws the actions of an episode, each agent from a generator of its own; masks are respected.

    Args:
        action_spaces: by agent. They are copied: an env may draw from its own.
        seed: seed of the random actions.
    """

    def __init__(self, action_spaces: Mapping[AgentID, spaces.Space[Any]], seed: int) -> None:
        self._spaces = {agent: deepcopy(space) for agent, space in action_spaces.items()}
        for number, space in enumerate(self._spaces.values()):
            space.seed(seed + number)

    def draw(self, agent: AgentID, observation: Any, info: Any) -> Any:
        """The next action of an agent."""
        space = self._spaces[agent]
        mask = mask_of(observation, info)
        if mask is None or not isinstance(space, spaces.Discrete):
            return space.sample()
        allowed = np.asarray(mask)
        if allowed.shape != (space.n,) or not allowed.any():
            return space.sample()  # the check of masks says so
        return space.sample(mask=allowed.astype(np.int8))


def mask_of(observation: Any, info: Any) -> Any:
    """The action mask in an agent's infos or its Dict observation; None if there is none."""
    return mapping(info).get(MASK, mapping(observation).get(MASK))
