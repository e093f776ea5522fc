"""Running means and variances: SB3's, as part of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd

from marl_sb3.errors import CheckpointError
from marl_sb3.storage.state import State, StateReader

_MAX_COUNT = 1e18

Statistics = Mapping[str, RunningMeanStd]


def statistics_state(statistics: Statistics) -> State:
    """All of them, as plain data and arrays."""
    return {
        name: {"mean": np.array(own.mean), "var": np.array(own.var), "count": float(own.count)}
        for name, own in statistics.items()
    }


def read_statistics(statistics: Statistics, state: StateReader) -> Callable[[], None]:
    """Check what `statistics_state` returned.

    Returns:
        A function that puts it into these.

    Raises:
        CheckpointError: the statistics are others, or do not have these shapes.
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
