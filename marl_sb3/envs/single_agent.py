"""A Gymnasium env as a `ParallelEnv` with one agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.types import AgentID

AGENT: AgentID = "agent"
MASK = "action_mask"  # the entry of an agent's info that holds its action mask


class SingleAgentEnv(ParallelEnv):  # type: ignore[misc]
    """Wraps a Gymnasium env; its only agent is called `agent`.

    An env with a method `action_masks()` gives its agent action masks.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self.possible_agents: list[AgentID] = [AGENT]
        self.agents: list[AgentID] = []
        self.metadata = {**(env.metadata or {}), "name": env.spec.id if env.spec else type(env.unwrapped).__name__}
        self.render_mode = env.render_mode
        has_masks = env.has_wrapper_attr("action_masks")
        self._action_masks = env.get_wrapper_attr("action_masks") if has_masks else None

    def observation_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The env's observation space."""
        return self.env.observation_space

    def action_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The env's action space."""
        return self.env.action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Reset the env."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.agents = [AGENT]
        return {AGENT: observation}, {AGENT: self._with_mask(info)}

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], ...]:
        """Step the env with its agent's action."""
        observation, reward, terminated, truncated, info = self.env.step(actions[AGENT])
        if terminated or truncated:
            self.agents = []
        else:
            info = self._with_mask(info)
        return {AGENT: observation}, {AGENT: reward}, {AGENT: terminated}, {AGENT: truncated}, {AGENT: info}

    def _with_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        """Add what the env's `action_masks()` returns, which is where sb3-contrib looks for masks."""
        if self._action_masks is None or MASK in info:
            return info
        return {**info, MASK: np.asarray(self._action_masks()).reshape(-1)}

    def render(self) -> Any:
        """Return what the env renders."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()
