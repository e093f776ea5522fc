"""A Gymnasium env as a `ParallelEnv` of one agent, the names that envs and vec envs share, and resized images."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.types import AgentID, Array

AGENT: AgentID = "agent"
MASK = "action_mask"  # the entry of an agent's info that holds its action mask
# The entry of metadata and infos of an env that counts its episodes beneath wrappers; see `EpisodeTracker`.
BENEATH = "episode_beneath_wrappers"


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


def resize(images: Array, height: int, width: int) -> Array:
    """Resize a batch of images.

    Every new pixel is the mean of the area that it covers; a pixel that it covers in part counts in part. For whole
    numbers of type integer the mean is rounded.

    Args:
        images: (n, old height, old width, channels).
        height: new height.
        width: new width.

    Returns:
        (n, height, width, channels) of the same dtype.
    """
    rows, columns = _weights(images.shape[1], height), _weights(images.shape[2], width)
    mixed = np.einsum("hi,nijc->nhjc", rows, images, optimize=True)
    mixed = np.einsum("wj,nhjc->nhwc", columns, mixed, optimize=True)
    resized: Array = (np.rint(mixed) if images.dtype.kind in "iu" else mixed).astype(images.dtype)
    return resized


@cache
def _weights(old: int, new: int) -> Array:
    """(new, old): the part of each old pixel in each new one; every row sums to 1."""
    edges = np.arange(new + 1) * (old / new)
    upper = np.minimum(edges[1:, None], np.arange(1, old + 1))
    lower = np.maximum(edges[:-1, None], np.arange(old))
    overlap = np.maximum(upper - lower, 0.0)
    weights: Array = (overlap / overlap.sum(axis=1, keepdims=True)).astype(np.float64)
    return weights
