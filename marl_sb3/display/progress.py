"""How a training run progresses: its times and speed, the values of its metrics over time, and both as text."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from marl_sb3.config.values import counted
from marl_sb3.display.text import duration, number
from marl_sb3.metrics import Result

_WINDOW_S = 30.0  # the rate is measured over the latest half minute,
_WINDOW_SAMPLES = 10  # or over this many iterations where they take longer
_SAMPLE_S = 0.1  # least time between samples: an iteration may take less than a millisecond
_MAX_POINTS = 64  # of a series; at this number, neighbours are merged in pairs


class ProgressClock:
    """Measures elapsed time, rate and remaining time of a training run or search.

    The rate is steps per second of wall-clock time, including evaluations and checkpoints.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started_s: float | None = None
        self._samples: deque[tuple[float, int]] = deque()  # time and steps done

    def begin(self, done: int) -> None:
        """Start at `done` steps, or restart there after a rollback."""
        now_s = self._clock()
        if self._started_s is None:
            self._started_s = now_s
        self._samples = deque([(now_s, done)])
        self._latest = (now_s, done)

    def add(self, done: int) -> None:
        """Record the number of steps done at the end of an iteration."""
        self._latest = (self._clock(), done)
        if self._latest[0] - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append(self._latest)
            while len(self._samples) > _WINDOW_SAMPLES and self._latest[0] - self._samples[1][0] >= _WINDOW_S:
                self._samples.popleft()

    def elapsed_s(self) -> float:
        """Return the seconds since the first `begin`."""
        return 0.0 if self._started_s is None else self._clock() - self._started_s

    def rate(self) -> float | None:
        """Return the steps per second; None before the end of the first iteration."""
        if not self._samples:
            return None
        (first_s, first), (last_s, last) = self._samples[0], self._latest
        return (last - first) / (last_s - first_s) if last_s > first_s and last > first else None

    def left_s(self, done: int, total: int) -> float | None:
        """Return the seconds from `done` to `total` steps at the present rate; None before the first iteration ends."""
        rate = self.rate()
        return None if rate is None else max(0, total - done) / rate


class Series:
    """A metric over a training run in bounded memory: means over equal spans of iterations, and the best value."""

    def __init__(self, higher_is_better: bool = True) -> None:
        self._sign = 1.0 if higher_is_better else -1.0
        self._means: list[float] = []
        self._span = 1  # values in each mean
        self._pending: list[float] = []
        self.best: float | None = None  # value; None before the first
        self.best_iteration: int | None = None

    def add(self, value: float | None, iteration: int) -> None:
        """Add the value of an iteration; None is ignored."""
        if value is None:
            return
        if self.best is None or self._sign * value > self._sign * self.best:
            self.best, self.best_iteration = value, iteration
        self._pending.append(value)
        if len(self._pending) == self._span:
            self._means.append(_mean(self._pending))
            self._pending = []
        if len(self._means) == _MAX_POINTS:
            self._means = [_mean(self._means[i : i + 2]) for i in range(0, _MAX_POINTS, 2)]
            self._span *= 2

    def trend(self, points: int) -> list[float]:
        """Return at most `points` means over equal spans, from the start of the run to now."""
        if points < 1:
            return []
        size = -(-len(self._means) // points) or 1
        return [_mean(self._means[i : i + size]) for i in range(0, len(self._means), size)]


def _mean(values: list[float]) -> float:
    """Return the mean, computed so that equal values give exactly that value: a constant shows no trend."""
    first = values[0]
    return first + sum(value / len(values) - first / len(values) for value in values)


def progress_parts(clock: ProgressClock, done: int, total: int) -> list[str]:
    """Format steps done, elapsed time and remaining time."""
    more = " (iterations are complete)" if done > total else ""
    return [
        f"{done:,} of {total:,} env steps{more}",
        f"{duration(clock.elapsed_s())} elapsed",
        f"{duration(clock.left_s(done, total))} left",
    ]


def speed_parts(clock: ProgressClock, result: Result | None) -> list[str]:
    """Format iteration, speed, and the shares of rollout and update in the time."""
    if result is None:
        return ["iteration 1"]
    timers, throughput, rate = result["timers"], result["throughput"], clock.rate()
    rollout_s, update_s = timers["env_runner_sampling_timer"], timers["learner_update_timer"]
    total_s = (rollout_s + update_s) or 1.0
    env_rate, agent_rate = throughput["env_steps_per_s"], throughput["agent_steps_per_s"]
    health = result.get("fault_tolerance", {})  # of the processes that step the envs, if there are any
    restarts = health.get("num_worker_restarts")
    agents_rate = rate * agent_rate / env_rate if rate and env_rate and agent_rate else None
    return [
        f"iteration {result['iteration']}",
        f"{number(rate, 0)} env steps/s",
        f"{number(agents_rate, 0)} agent steps/s",
        f"rollout {rollout_s / total_s:.0%}",
        f"update {update_s / total_s:.0%}",
        *([counted(health["num_healthy_workers"], "worker")] if health else []),
        *([counted(restarts, "worker restart")] if restarts else []),
    ]
