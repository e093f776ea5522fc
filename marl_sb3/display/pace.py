"""How fast a training is, and how long it will take: one estimate for all that is shown."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_WINDOW_S = 30.0  # the rate is that of the latest half minute,
_WINDOW_SAMPLES = 10  # or of so many iterations, where they take longer
_SAMPLE_S = 0.1  # between samples: iterations may take less than a millisecond


class Pace:
    """Elapsed time, steps per second and remaining time.

    The rate is over wall-clock time: evaluations and checkpoints are part of it.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started_s: float | None = None
        self._samples: deque[tuple[float, int]] = deque()  # time and steps done

    def begin(self, done: int) -> None:
        """Start, or start again after a rollback, at so many steps."""
        now_s = self._clock()
        if self._started_s is None:
            self._started_s = now_s
        self._samples = deque([(now_s, done)])
        self._latest = (now_s, done)

    def add(self, done: int) -> None:
        """Note how many steps are done at the end of an iteration."""
        self._latest = (self._clock(), done)
        if self._latest[0] - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append(self._latest)
            while len(self._samples) > _WINDOW_SAMPLES and self._latest[0] - self._samples[1][0] >= _WINDOW_S:
                self._samples.popleft()

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return 0.0 if self._started_s is None else self._clock() - self._started_s

    def rate(self) -> float | None:
        """Steps per second; None before the first iteration is over."""
        if not self._samples:
            return None
        (first_s, first), (last_s, last) = self._samples[0], self._latest
        return (last - first) / (last_s - first_s) if last_s > first_s and last > first else None

    def left_s(self, done: int, total: int) -> float | None:
        """Seconds from `done` to `total` steps at this rate; None before the first iteration is over."""
        rate = self.rate()
        return None if rate is None else max(0, total - done) / rate
