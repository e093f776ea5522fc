"""Envs of other kinds as `ParallelEnv`s: an `AECEnv`, whose agents take turns, and a Gymnasium env of one agent."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import BaseParallelWrapper
from pettingzoo.utils.conversions import aec_to_parallel
from pettingzoo.utils.env_logger import EnvLogger

from marl_sb3.types import AgentID, Array

_said: set[str] = set()


def _once_each(record: logging.LogRecord) -> bool:
    """Let each message pass once: PettingZoo logs the same words at every illegal move of a policy that learns."""
    known = len(_said)
    _said.add(record.getMessage())
    return len(_said) > known


# By agent, what `ParallelEnv.step` returns: observations, rewards, terminations, truncations and infos.
_Told = tuple[dict[AgentID, Any], ...]


class TurnBasedEnv(BaseParallelWrapper):  # type: ignore[misc]
    """Its `agents` are those that act in the next step: the one agent whose turn it is.

    An agent is paid when its next turn comes, or its end: all that it has earned since its last action, as
    `AECEnv.last` defines it. Its end comes with its dead turn, the turn in which PettingZoo's loops pass `None`; these
    turns are no steps. An agent that the env removes without a dead turn is reported in the same way. Rewards and ends
    may therefore belong to agents that did not act in the step.
    """

    def __init__(self, env: AECEnv) -> None:
        super().__init__(env)
        EnvLogger.get_logger().addFilter(_once_each)
        self.possible_agents: list[AgentID] = getattr(env, "possible_agents", None)  # type: ignore[assignment]
        self.agents: list[AgentID] = []
        self.metadata = getattr(env, "metadata", None)
        self.render_mode = getattr(env, "render_mode", None)
        self._live: set[AgentID] = set()  # have not ended
        # PettingZoo's own wrappers pass on each read of `agents` and the like: together, as long as a step of a game.
        self._state = env
        while type(self._state).__module__.startswith("pettingzoo.utils.wrappers."):
            self._state = self._state.env
        self._last = self._read_last if type(env).last is AECEnv.last else env.last

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Begin an episode; the observation and the info are those of the agent that acts first."""
        self.env.reset(seed=seed, options=options)
        self._live = set(self._state.agents)
        told: _Told = ({}, {}, {}, {}, {})
        self._go_to_next_turn(told)
        return told[0], told[4]

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], ...]:
        """Let the agent act whose turn it is.

        Returns:
            Observations, rewards, terminations, truncations and infos of the agents that have ended and of the one that
            acts next. An agent that has acted and waits has the reward 0: it is paid at its next turn.
        """
        ((agent, action),) = actions.items()
        self._live.update(self._state.agents)
        self.env.step(action)
        told: _Told = ({}, {agent: 0.0}, {agent: False}, {agent: False}, {})
        self._go_to_next_turn(told)
        self._report_removed(told)
        return told

    def _go_to_next_turn(self, told: _Told) -> None:
        """Take the dead turns of agents that have ended, until it is the turn of one that acts or nobody is left."""
        self.agents = []
        left: set[AgentID] = set()
        while self._state.agents and not self.agents:
            agent = self._state.agent_selection
            if agent in left:
                raise RuntimeError(f"agent {agent!r} has ended, but step(None) gives it another turn")
            last = self._last()
            for values, value in zip(told, last, strict=True):
                values[agent] = value
            if last[2] or last[3]:
                left.add(agent)
                self._live.discard(agent)
                self.env.step(None)
            else:
                self.agents = [agent]

    def _read_last(self) -> tuple[Any, ...]:
        """Read what `AECEnv.last` returns."""
        agent = (state := self._state).agent_selection
        of_agent = state._cumulative_rewards[agent], state.terminations[agent], state.truncations[agent]
        return (self.env.observe(agent), *of_agent, state.infos[agent])

    def _report_removed(self, told: _Told) -> None:
        """Report the end of agents that the env has removed without a dead turn, if it flagged them."""
        env = self._state
        for agent in self._live.difference(env.agents):
            flags = env.terminations.get(agent, False), env.truncations.get(agent, False)
            if any(flags):
                earned, info = env._cumulative_rewards.get(agent, 0.0), env.infos.get(agent, {})
                for values, value in zip(told, (self.env.observe(agent), earned, *flags, info), strict=True):
                    values[agent] = value
                self._live.discard(agent)


def as_parallel(env: AECEnv) -> ParallelEnv:
    """A `ParallelEnv` of a turn-based env.

    If the env's metadata says `is_parallelizable`, the order of turns within a cycle does not matter, and all agents
    act at once, as in PettingZoo's own parallel versions of such envs. Otherwise one agent acts in each step.
    """
    metadata = getattr(env, "metadata", None)
    simultaneous = isinstance(metadata, Mapping) and metadata.get("is_parallelizable", False)
    return aec_to_parallel(env) if simultaneous else TurnBasedEnv(env)


# --- Gymnasium envs, and images resized by areas ----------------------------------------------------------------------


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
