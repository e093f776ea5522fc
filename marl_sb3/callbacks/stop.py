"""End the training when a metric has reached a value, or after a number of env steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marl_sb3.metrics import Result, flatten, require_metric
from marl_sb3.training.callback import MultiAgentCallback


class StopAfterSteps(MultiAgentCallback):
    """Stops after the first iteration that completes so many env steps.

    Args:
        env_steps: of the whole run.
    """

    def __init__(self, env_steps: int) -> None:
        super().__init__()
        self.env_steps = env_steps

    def on_iteration_end(self, result: Result) -> bool:
        """False once they are taken."""
        return self.num_timesteps < self.env_steps


class StopOnMetric(MultiAgentCallback):
    """Stops after the first iteration in which one of the metrics is at least its value.

    Args:
        thresholds: value by metric name, such as `{"env_runners/episode_return_mean": 15}`.
        more_metrics: names that other callbacks add to the result; see `EvaluationCallback.metric_names`.

    Attributes:
        reached: the condition that was met, in words; None before.
    """

    def __init__(self, thresholds: Mapping[str, float], more_metrics: Sequence[str] = ()) -> None:
        super().__init__()
        self.thresholds = dict(thresholds)
        self._more_metrics = list(more_metrics)
        self.reached: str | None = None

    def _init_callback(self) -> None:
        """Refuse metrics that no result will have.

        Raises:
            ConfigError: with the names that come close.
        """
        known = [*self.algorithm.metric_names(), *self._more_metrics]
        for name in self.thresholds:
            require_metric(name, known)

    def on_iteration_end(self, result: Result) -> bool:
        """False once a threshold is reached."""
        flat = flatten(result)
        for name, threshold in self.thresholds.items():
            value = flat.get(name)
            if value is not None and value >= threshold:
                self.reached = f"{name} is {value:.4g}, at least {threshold:g}"
                return False
        return True
