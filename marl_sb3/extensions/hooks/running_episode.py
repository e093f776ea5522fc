"""The episode at hand, as hooks of callbacks see it while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marl_sb3.core.vec_env import MultiAgentVecEnv, VecStep, map_arrays
from marl_sb3.types import AgentID, Array, PolicyID


@dataclass(frozen=True)
class LatestStep:
    """The latest step of one env."""

    env: MultiAgentVecEnv
    env_index: int
    step: VecStep
    # per group, those of all envs; None at the start of an episode, which `step` has begun
    actions: Sequence[Array] | None

    def _place(self, agent: AgentID) -> tuple[int, int, int]:
        """Return the agent's column, its group and its column in the group."""
        group = next(number for number, each in enumerate(self.env.groups) if agent in each.agents)
        return self.env.agents.index(agent), group, self.env.groups[group].agents.index(agent)

    def observation(self, agent: AgentID) -> Any:
        """See `RunningEpisode.observation`."""
        column, group, of_group = self._place(agent)
        place = self.env_index, column
        if self.actions is not None and place in self.step.final_observations:
            return self.step.final_observations[place]
        is_over = self.actions is not None and self.step.episode_done[self.env_index]
        if is_over or not self.step.to_act[place]:
            return None
        return map_arrays(lambda array: np.array(array[self.env_index, of_group]), self.step.observations[group])

    def action(self, agent: AgentID) -> Any:
        """See `RunningEpisode.action`."""
        column, group, of_group = self._place(agent)
        acted = self.actions is not None and self.step.acted[self.env_index, column]
        return self.actions[group][self.env_index, of_group] if acted and self.actions is not None else None

    def reward(self, agent: AgentID) -> float | None:
        """See `RunningEpisode.reward`."""
        return None if self.actions is None else float(self.step.rewards[self.env_index, self._place(agent)[0]])

    def info(self, agent: AgentID) -> Mapping[str, Any]:
        """See `RunningEpisode.info`."""
        of_reset = self.step.reset_infos.get(self.env_index, {})
        of_env = of_reset if self.actions is None else self.step.infos[self.env_index]
        found: Mapping[str, Any] = of_env.get(agent, {})
        return found


@dataclass
class RunningEpisode:
    """One episode of one env, for hooks."""

    id: str  # the index of the env, and the number of the episode in it since the training started: `3-17`
    env_index: int  # index of the env
    agents: Sequence[AgentID]  # all agents of the env
    length: int = 0  # env steps so far
    # sum of the rewards so far, of each agent that has acted or was paid
    agent_returns: Mapping[AgentID, float] = field(default_factory=dict)
    agent_steps: Mapping[AgentID, int] = field(default_factory=dict)  # number of actions so far, of each agent
    # the custom metrics of the env's infos, at the end of the episode
    custom: Mapping[str, float] = field(default_factory=dict)
    duration_s: float = 0.0  # seconds that the episode took, at its end
    # for hooks to keep what they like until the episode ends. A checkpoint holds dicts, lists, strings, numbers and
    # arrays of it. An episode that goes on from one has its start hook again, and then its data.
    user_data: dict[str, Any] = field(default_factory=dict)
    # name -> number; mean, least and largest value are among the `env_runners/custom_metrics`
    custom_metrics: dict[str, float] = field(default_factory=dict)
    # name -> numbers, all of which are in `env_runners/hist_stats` of the iteration
    hist_data: dict[str, list[float]] = field(default_factory=dict)
    # name -> pictures, (T, H, W, 3) uint8; the latest of an iteration are in TensorBoard, and in a run a film in the
    # folder `media`
    media: dict[str, Any] = field(default_factory=dict)
    policy_of: Mapping[AgentID, PolicyID] = field(default_factory=dict)  # agent -> the policy that plays it
    latest: LatestStep | None = field(default=None, repr=False)

    def observation(self, agent: AgentID) -> Any:
        """Return the agent's latest observation, as the env gave it; None if the agent has none in this step."""
        return None if self.latest is None else self.latest.observation(agent)

    def action(self, agent: AgentID) -> Any:
        """Return the agent's action in the latest step, as the env got it; None if it did not act."""
        return None if self.latest is None else self.latest.action(agent)

    def reward(self, agent: AgentID) -> float | None:
        """Return the agent's reward in the latest step; None at the start of the episode."""
        return None if self.latest is None else self.latest.reward(agent)

    def info(self, agent: AgentID) -> Mapping[str, Any]:
        """Return the agent's latest info."""
        return {} if self.latest is None else self.latest.info(agent)
