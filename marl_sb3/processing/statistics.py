"""Running means and variances of SB3 as part of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd

from marl_sb3.errors import CheckpointError
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array

_MAX_COUNT = 1e18

Statistics = Mapping[str, "RunningStatistics"]


class RunningStatistics(RunningMeanStd):
    """SB3's running mean and variance, which can also keep what came in since a certain moment.

    Attributes:
        recent: mean, variance and count since `begin_recent`; None before the first call.
    """

    recent: RunningMeanStd | None = None

    def begin_recent(self) -> None:
        """Begin to keep what comes in from now on."""
        self.recent = RunningMeanStd(epsilon=0.0, shape=np.shape(self.mean))

    def update_from_moments(self, batch_mean: Array, batch_var: Array, batch_count: float) -> None:
        """See `RunningMeanStd.update_from_moments`."""
        super().update_from_moments(batch_mean, batch_var, batch_count)
        if self.recent is not None:
            self.recent.update_from_moments(batch_mean, batch_var, batch_count)


def statistics_state(statistics: Mapping[str, RunningMeanStd]) -> State:
    """Return running statistics as plain data and arrays."""
    return {
        name: {"mean": np.array(own.mean), "var": np.array(own.var), "count": float(own.count)}
        for name, own in statistics.items()
    }


def recent_state(statistics: Statistics) -> State:
    """Return what came into the statistics since `begin_recent`, as `statistics_state` does."""
    return statistics_state({name: own.recent for name, own in statistics.items() if own.recent is not None})


def add_recent(statistics: Statistics, recent: Mapping[str, Mapping[str, Any]]) -> None:
    """Combine statistics with those that `recent_state` returned elsewhere."""
    for name, own in statistics.items():
        moments = recent[name]
        if moments["count"] > 0:
            own.update_from_moments(moments["mean"], moments["var"], moments["count"])


def read_statistics(statistics: Statistics, state: StateReader) -> Callable[[], None]:
    """Check what `statistics_state` returned.

    Returns:
        A function that puts the values into `statistics`.

    Raises:
        CheckpointError: the state has other statistics, or other shapes.
    """
    state.require_names(list(statistics))
    setters = [_read(own, state.fields(name)) for name, own in statistics.items()]

    def put_back() -> None:
        for put in setters:
            put()

    return put_back


def _read(own: RunningMeanStd, state: StateReader) -> Callable[[], None]:
    state.require_names(["mean", "var", "count"])
    mean, var = (state.sums(name, np.shape(own.mean)) for name in ("mean", "var"))
    if not (np.isfinite(mean).all() and np.isfinite(var).all()) or (var < 0).any():
        raise CheckpointError(f"{state.where} holds a mean or a variance that none can be")
    count = state.number("count", 0.0, _MAX_COUNT)

    def put_back() -> None:
        own.mean, own.var, own.count = mean.copy(), var.copy(), count

    return put_back
