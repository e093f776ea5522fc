"""End the training when a metric reaches a value, or after a number of env steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from marl_sb3.config.values import FiniteFloat, require
from marl_sb3.metrics import Result, flatten, require_metric
from marl_sb3.training.callback import MultiAgentCallback

_Thresholds = Annotated[Mapping[str, FiniteFloat], Meta(description="a mapping of metric names to numbers")]


class StopAfterSteps(MultiAgentCallback):
    """Stops after the first iteration that completes `env_steps` env steps."""

    def __init__(self, env_steps: int) -> None:
        super().__init__()
        self.env_steps = env_steps

    def on_iteration_end(self, result: Result) -> bool:
        """Return False once the env steps are taken."""
        return self.num_timesteps < self.env_steps


class StopOnMetric(MultiAgentCallback):
    """Stops after the first iteration in which one of the metrics is at least its value.

    Args:
        thresholds: metric name -> value, such as `{"env_runners/episode_return_mean": 15}`.
        more_metrics: names of metrics that other callbacks add to the result; see `EvaluationCallback.metric_names`.

    Attributes:
        reached: a sentence about the condition that was met; None before.

    Raises:
        ConfigError: the thresholds are no such mapping; or, when the training starts, a metric is unknown.
    """

    def __init__(self, thresholds: Mapping[str, float], more_metrics: Sequence[str] = ()) -> None:
        super().__init__()
        self.thresholds = require("thresholds", thresholds, _Thresholds)
        self._more_metrics = list(more_metrics)
        self.reached: str | None = None

    def _init_callback(self) -> None:
        """Refuse metrics that no result will have."""
        known = [*self.algorithm.metric_names(), *self._more_metrics]
        for name in self.thresholds:
            require_metric(name, known)

    def on_iteration_end(self, result: Result) -> bool:
        """Return False once a threshold is reached."""
        flat = flatten(result)
        for name, threshold in self.thresholds.items():
            value = flat.get(name)
            if value is not None and value >= threshold:
                self.reached = f"{name} is {value:.4g}, at least {threshold:g}"
                return False
        return True
