"""Running means and variances of SB3 as part of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd

from marl_sb3.storage.parts import Fields, Stateful, array, number, states_of, sums
from marl_sb3.storage.state import MAX_NUMBER, State
from marl_sb3.types import Array

_MAX_COUNT = 1e18

Statistics = Mapping[str, "RunningStatistics"]


class RunningStatistics(Stateful, RunningMeanStd):
    """SB3's running mean and variance, which can also keep what came in since a certain moment.

    Attributes:
        recent: the same since `begin_recent`; None before the first call.
    """

    fields: ClassVar[Fields] = {
        "mean": sums("mean"),
        "var": array("var", 0.0, MAX_NUMBER),
        "count": number("count", 0.0, _MAX_COUNT),
    }

    recent: RunningStatistics | None = None

    def begin_recent(self) -> None:
        """Begin to keep what comes in from now on."""
        self.recent = RunningStatistics(epsilon=0.0, shape=np.shape(self.mean))

    def update_from_moments(self, batch_mean: Array, batch_var: Array, batch_count: float) -> None:
        """See `RunningMeanStd.update_from_moments`."""
        super().update_from_moments(batch_mean, batch_var, batch_count)
        if self.recent is not None:
            self.recent.update_from_moments(batch_mean, batch_var, batch_count)


def recent_state(statistics: Statistics) -> State:
    """Return what came into the statistics since `begin_recent`, by name."""
    return states_of({name: own.recent for name, own in statistics.items() if own.recent is not None})


def add_recent(statistics: Statistics, recent: Mapping[str, Mapping[str, Any]]) -> None:
    """Combine statistics with those that `recent_state` returned in another process."""
    for name, own in statistics.items():
        moments = recent[name]
        if moments["count"] > 0:
            own.update_from_moments(moments["mean"], moments["var"], moments["count"])
