"""Log more metrics: of each agent while stock SB3 trains, and histograms of rewards."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.core.metrics.episodes import EpisodeTracker, InfoMetric
from marl_sb3.core.metrics.names import Result, flatten
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.training.algorithm import MultiAgentCallback
from marl_sb3.core.vec_env.flat_vec_env import FlatVecEnv
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.hooks.episodes import RunningEpisode
from marl_sb3.types import Array, PolicyID

_POLICY: PolicyID = "shared"


class AgentMetricsCallback(BaseCallback):
    """Logs the metrics below `env_runners/` while a stock algorithm trains on `env.as_sb3_vec_env()`.

    `MultiAgentAlgorithm` does not need it: it has these metrics by itself.

    Args:
        window: number of finished episodes that the metrics run over.
        custom_metrics: metrics from the infos, in addition to those that the env announces.
    """

    tracker: EpisodeTracker  # the finished episodes; set when the training starts

    def __init__(self, window: int = 100, custom_metrics: Mapping[str, InfoMetric] | None = None) -> None:
        super().__init__()
        self._window = window
        self._custom_metrics = custom_metrics

    def _on_training_start(self) -> None:
        env = self.training_env.unwrapped
        if not isinstance(env, FlatVecEnv):
            raise ConfigError(f"the training env is {type(env).__name__}; accepted: that of as_sb3_vec_env()")
        self._rows = env
        policy_of = dict.fromkeys(env.env.agents, _POLICY)
        self.tracker = EpisodeTracker(env.env, policy_of, self._window, self._custom_metrics)

    def _on_step(self) -> bool:
        assert self._rows.last_step is not None
        self.tracker.record(self._rows.last_step)
        return True

    def _on_rollout_end(self) -> None:
        for name, value in flatten(self.tracker.summary(), "env_runners/").items():
            if value is not None:
                self.logger.record(name, value)


class RewardHistogramCallback(MultiAgentCallback):
    """Logs `env_runners/episode_rewards/{agent}` of the latest finished episode of env 0, once per iteration.

    Args:
        most_agents: of more agents there is one histogram, `env_runners/episode_rewards`; None: one of each agent.
    """

    sees_steps = False  # may be called once for many steps

    def __init__(self, most_agents: int | None = None) -> None:
        super().__init__()
        self._most_agents = most_agents
        self._steps: list[tuple[Array, Array]] = []  # rewards and acted, (A,) each, of the running episode
        self._finished: list[tuple[Array, Array]] = []
        self._length = 0  # env steps of the latest episode of env 0

    def _on_training_start(self) -> None:
        self._steps, self._finished = [], []

    def on_episode_end(self, episode: RunningEpisode) -> None:
        """Keep the length of the episode."""
        if episode.env_index == 0:
            self._length = episode.length

    def _on_step(self) -> bool:
        step = self.locals["step"]
        here = step.rewards[:1].copy(), step.episode_done[:1]
        acted = step.acted[0].copy()
        for rewards, done in zip(*getattr(step, "first_env", here), strict=True):  # of many steps at once, or one
            self._steps.append((rewards, acted))
            if done:
                # Skip an episode that began before this training: its first rewards are unknown.
                if len(self._steps) == self._length:
                    self._finished = self._steps
                self._steps = []
        return True

    def get_state(self) -> State:
        """Return the steps of the running episode of env 0."""
        columns = map(np.stack, zip(*self._steps, strict=True)) if self._steps else (None, None)
        return dict(zip(("rewards", "acted"), columns, strict=True))

    def set_state(self, state: StateReader) -> None:
        """Check and set what `get_state` has returned."""
        if state.value("rewards") is not None:
            shape = (None, len(self.algorithm.env.agents))
            rewards = state.array("rewards", np.float32, shape)
            acted = state.array("acted", np.bool_, rewards.shape)
            self._steps = list(zip(rewards, acted, strict=True))

    def on_iteration_end(self, result: Result) -> bool:
        """Record the histograms if an episode has finished since the last iteration."""
        if self._finished:
            rewards, acted = (np.stack(arrays) for arrays in zip(*self._finished, strict=True))
            agents = self.algorithm.env.agents
            if self._most_agents is not None and len(agents) > self._most_agents:
                self._record("env_runners/episode_rewards", rewards[acted])
            else:
                for column, agent in enumerate(agents):
                    self._record(f"env_runners/episode_rewards/{agent}", rewards[acted[:, column], column])
            self._finished = []
        return True

    def _record(self, name: str, rewards: Array) -> None:
        if rewards.size:
            self.logger.record(name, rewards, exclude=("json", "csv", "stdout"))
