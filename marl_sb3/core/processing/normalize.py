"""Running statistics that normalise observations and rewards, operation by operation as SB3's `VecNormalize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from typing_extensions import override

from marl_sb3.core.config import ProcessingSettings
from marl_sb3.core.processing.processors import (
    WHOLE,
    Memory,
    ObservationProcessor,
    ProcessedPolicy,
    ProcessorInput,
    Space,
    map_parts,
    named,
    part,
    parts_of,
    with_parts,
)
from marl_sb3.core.state import MAX_NUMBER, Fields, State, Stateful, array, number, states_of, sums
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, Observations

_MAX_COUNT = 1e18

Statistics = Mapping[str, "RunningStatistics"]


class RunningStatistics(Stateful, RunningMeanStd):
    """SB3's running mean and variance, which can also keep what came in since a certain moment."""

    fields: ClassVar[Fields] = {
        "mean": sums("mean"),
        "var": array("var", 0.0, MAX_NUMBER),
        "count": number("count", 0.0, _MAX_COUNT),
    }

    recent: RunningStatistics | None = None  # the same since `begin_recent`; None before the first call

    def begin_recent(self) -> None:
        """Begin to keep what comes in from now on."""
        self.recent = RunningStatistics(epsilon=0.0, shape=np.shape(self.mean))

    @override
    def update_from_moments(self, batch_mean: Array, batch_var: Array, batch_count: float) -> None:
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


class NormalizeObservations(ObservationProcessor):
    """See `VecNormalize` with `norm_obs=True`. An observation updates the statistics before it is normalised.

    Attributes:
        clip: limit of the results.
        epsilon: added to variances before they divide.
        before: the space before normalisation.
        statistics: running statistics by key; of a space that is no Dict, under one key.

    Raises:
        ConfigError: a key is unknown or no Box.
    """

    def __init__(self, space: Space, settings: ProcessingSettings, policy: ProcessedPolicy) -> None:
        self.clip, self.epsilon, self.before = settings.clip_observations, settings.normalize_epsilon, space
        boxes = _boxes(space, settings.normalize_keys)
        self.statistics = {key: RunningStatistics(shape=box.shape) for key, box in boxes.items()}
        normal = {key: spaces.Box(-self.clip, self.clip, box.shape, np.float32) for key, box in boxes.items()}
        self.space = with_parts(space, normal)

    @override
    def observe(self, inputs: ProcessorInput) -> tuple[Observations, Memory]:
        self.take_in(inputs)
        return self.normalized(inputs.seen), {}

    def take_in(self, inputs: ProcessorInput) -> None:
        """Take observations into the statistics, if these are to learn from them."""
        if inputs.learn:
            for key, own in self.statistics.items():
                own.update(part(inputs.seen, key))

    def normalized(self, seen: Observations) -> Observations:
        """Return normalised observations; the statistics do not change."""
        return map_parts(seen, self._normalized, self.statistics)

    def restored(self, seen: Observations) -> Observations:
        """Return observations normalised and back again, as SB3 keeps the last ones of episodes for its replay buffers.

        That is the observation up to rounding, and up to `clip`.
        """

        def back(key: str, array: Array) -> Array:
            own, dtype = self.statistics[key], parts_of(self.before)[key].dtype
            numbers: Array = self._normalized(key, array) * np.sqrt(own.var + self.epsilon) + own.mean
            return numbers.astype(dtype)

        return map_parts(seen, back, self.statistics)

    def _normalized(self, key: str, array: Array) -> Array:
        own = self.statistics[key]
        limited: Array = np.clip((array - own.mean) / np.sqrt(own.var + self.epsilon), -self.clip, self.clip)
        return limited.astype(np.float32)


def _boxes(space: Space, keys: Sequence[str] | None) -> dict[str, spaces.Box]:
    parts = parts_of(space)
    if keys is not None and WHOLE in parts:
        words = f"normalize_keys is {list(keys)}, but the observation space is {space}; accepted: keys of a Dict"
        raise ConfigError(words, key="normalize_keys")
    for key in keys or ():
        if key not in parts:
            words = f"normalize_keys names {key!r}; the observation has {', '.join(parts)}"
            raise ConfigError(words, key="normalize_keys")
    chosen = {key: parts[key] for key in (parts if keys is None else keys)}
    for key, each in chosen.items():
        if not isinstance(each, spaces.Box):
            hint = "; normalize_keys can leave it out" if key else ""
            words = f"normalize_observations: {named(key)}the space is {each}; accepted: a Box{hint}"
            raise ConfigError(words, key="normalize_observations")
    return chosen  # type: ignore[return-value]
