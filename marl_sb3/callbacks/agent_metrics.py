"""Per-agent metrics for stock SB3 algorithms, which do not know agents."""

from __future__ import annotations

from collections.abc import Mapping

from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.errors import ConfigError
from marl_sb3.metrics import EpisodeTracker, InfoMetric, flatten
from marl_sb3.types import PolicyID
from marl_sb3.vec_env.sb3_vec_env import FlatVecEnv

_POLICY: PolicyID = "shared"


class AgentMetricsCallback(BaseCallback):
    """Logs the metrics below `env_runners/` while a stock algorithm trains on `env.as_sb3_vec_env()`.

    `MultiAgentAlgorithm` does not need it: it has these metrics by itself.

    Args:
        window: number of finished episodes that the metrics run over.
        custom_metrics: metrics from the infos, in addition to those that the env announces.

    Attributes:
        tracker: the finished episodes; set when the training starts.
    """

    tracker: EpisodeTracker

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
