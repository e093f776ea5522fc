"""The values of a metric over a whole training, in bounded memory."""

from __future__ import annotations

_MOST = 64  # points; when there are as many, neighbours become one


class Series:
    """Means over equal spans of iterations, from the first one on, and the best value.

    Args:
        higher_is_better: whether the best value is the highest one.

    Attributes:
        latest: the newest value; None before the first.
        best: the best value; None before the first.
        best_iteration: in which iteration that was.
    """

    def __init__(self, higher_is_better: bool = True) -> None:
        self._sign = 1.0 if higher_is_better else -1.0
        self._means: list[float] = []
        self._span = 1  # values in each mean
        self._pending: list[float] = []
        self.latest: float | None = None
        self.best: float | None = None
        self.best_iteration: int | None = None

    def add(self, value: float | None, iteration: int) -> None:
        """Take the value of an iteration; None is none."""
        if value is None:
            return
        self.latest = value
        if self.best is None or self._sign * value > self._sign * self.best:
            self.best, self.best_iteration = value, iteration
        self._pending.append(value)
        if len(self._pending) == self._span:
            self._means.append(_mean(self._pending))
            self._pending = []
        if len(self._means) == _MOST:
            self._means = [_mean(self._means[i : i + 2]) for i in range(0, _MOST, 2)]
            self._span *= 2

    def trend(self, points: int) -> list[float]:
        """At most so many values, from the start of the training to now, each the mean of an equal span."""
        if points < 1:
            return []
        size = -(-len(self._means) // points) or 1
        return [_mean(self._means[i : i + size]) for i in range(0, len(self._means), size)]


def _mean(values: list[float]) -> float:
    """The mean; exact where all values are the same, so that a constant shows no trend."""
    first = values[0]
    return first + sum(value / len(values) - first / len(values) for value in values)
