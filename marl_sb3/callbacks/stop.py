"""End a training run: by a metric, after a number of env steps, or on a signal."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Annotated

from msgspec import Meta

from marl_sb3.core.config.values import FiniteFloat, require
from marl_sb3.core.metrics.names import Result, flatten
from marl_sb3.core.training.algorithm import MultiAgentCallback
from marl_sb3.extensions.dialects.names import require_logged
from marl_sb3.signals import ENDING, handled, interrupt
from marl_sb3.systems import HANGUP

Thresholds = Annotated[Mapping[str, FiniteFloat], Meta(description="a mapping of metric names to numbers")]

_log = logging.getLogger(__name__)


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

    Raises:
        ConfigError: the thresholds are no such mapping; or, when the training starts, a metric is unknown.
    """

    def __init__(self, thresholds: Mapping[str, float], more_metrics: Sequence[str] = ()) -> None:
        super().__init__()
        self.thresholds = require("thresholds", thresholds, Thresholds)
        self._more_metrics = list(more_metrics)
        self._resumed_at = 0
        self._is_named = False
        self.reached: str | None = None  # a sentence about the condition that was met; None before

    def _init_callback(self) -> None:
        """Refuse metrics that no result will have."""
        known = [*self.algorithm.metric_names(), *self._more_metrics]
        for name in self.thresholds:
            require_logged(name, known)
        self._resumed_at = self.algorithm.iteration

    def expect(self, result: Result | None) -> None:
        """Warn, before a resumed run goes on, if the last result that it has meets a threshold."""
        if met := self._met(result or {}):
            self._warn("a stop condition is met already", met)

    def on_iteration_end(self, result: Result) -> bool:
        """Return False once a threshold is reached."""
        self.reached = self._met(result)
        if self.reached and self._resumed_at and self.algorithm.iteration <= self._resumed_at + 1:
            self._warn("the run stops after one iteration", self.reached)
        return self.reached is None

    def _met(self, result: Result) -> str | None:
        flat = flatten(result)
        for name, threshold in self.thresholds.items():
            value = flat.get(name)
            if value is not None and value >= threshold:
                return f"{name} is {value:.4g}, at least {threshold:g}"
        return None

    def _warn(self, what: str, met: str) -> None:
        if not self._is_named:
            hint = "with --resume, --stop none trains on without it, --stop METRIC=VALUE with another value"
            _log.warning("%s: %s; %s", what, met, hint)
        self._is_named = True


_SILENCE_S = 10.0  # of clients, after a signal


class StopOnSignal(MultiAgentCallback):
    """Ends the training after the running iteration when the process receives SIGINT, SIGTERM or SIGHUP.

    Exact resume is only possible between iterations. A second SIGINT or SIGTERM interrupts at once. A second SIGHUP
    does not: when a terminal is closed, both the kernel and the shell send SIGHUP. Where clients step the envs, the
    iteration is not waited for if none of them steps: it ends at once if it has no steps yet, else after 10 seconds.

    As a context manager, it restores the former handlers on exit. See `marl_sb3.signals.handled` for when it does
    nothing.
    """

    sees_steps = False  # may be called once for many steps

    def __init__(self) -> None:
        super().__init__()
        self.received: str | None = None  # name of the received signal; None if there was none
        self._asked_to_end = False
        self._mentioned = False
        self._stepped_s = 0.0  # when an env has stepped, or the signal was noticed
        self._ended_at = 0  # env steps at the end of the latest iteration
        self._handlers = ExitStack()

    def __enter__(self) -> StopOnSignal:
        self._handlers.enter_context(handled(ENDING, self._on_signal))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name
        if number != HANGUP:
            if self._asked_to_end:
                interrupt(number, frame)
            self._asked_to_end = True

    def _on_training_start(self) -> None:
        self._ended_at = self.num_timesteps

    def _on_step(self) -> bool:
        if self.received is None:
            return True
        if not self._mentioned:
            self._mentioned = True  # not in the handler, which may have interrupted another message
            self._stepped_s = time.monotonic()
            _log.warning("%s: finishing the iteration and saving; once more stops at once", self.received)
        if not self.algorithm.env.steps_apart:
            return True
        now_s = time.monotonic()  # the iteration may never end, since clients that do not step would have to
        if self.locals["step"].stepped.any():
            self._stepped_s = now_s
        return self.num_timesteps != self._ended_at and now_s - self._stepped_s <= _SILENCE_S

    def on_iteration_end(self, result: Result) -> bool:
        """Return False once a signal was received."""
        self._ended_at = self.num_timesteps
        return self.received is None
