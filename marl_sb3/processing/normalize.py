"""Normalise observations by their running mean and variance, operation by operation as SB3's `VecNormalize`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import ConfigError
from marl_sb3.processing.by_key import WHOLE, Space, map_parts, named, part, parts_of, with_parts
from marl_sb3.processing.interface import Look, Memory, ObservationProcessor
from marl_sb3.processing.statistics import RunningStatistics
from marl_sb3.types import Array, Observations


class NormalizeObservations(ObservationProcessor):
    """See `VecNormalize` with `norm_obs=True`. An observation updates the statistics before it is normalised.

    Args:
        space: the observation space: a Box, or a Dict whose keys to normalise are Boxes.
        keys: keys of a Dict to normalise; None: all.
        clip: limit of the results.
        epsilon: added to variances before they divide.

    Attributes:
        before: the space before normalisation.
        statistics: running statistics by key; of a space that is no Dict, under one key.

    Raises:
        ConfigError: a key is unknown or no Box.
    """

    def __init__(self, space: Space, keys: Sequence[str] | None, clip: float, epsilon: float) -> None:
        self.clip, self.epsilon, self.before = clip, epsilon, space
        boxes = _boxes(space, keys)
        self.statistics = {key: RunningStatistics(shape=box.shape) for key, box in boxes.items()}
        normal = {key: spaces.Box(-clip, clip, box.shape, np.float32) for key, box in boxes.items()}
        self.space = with_parts(space, normal)

    def observe(self, look: Look) -> tuple[Observations, Memory]:
        """See `ObservationProcessor.observe`."""
        self.take_in(look)
        return self.normalized(look.seen), {}

    def take_in(self, look: Look) -> None:
        """Take observations into the statistics, if these are to learn from them."""
        if look.learn:
            for key, own in self.statistics.items():
                own.update(part(look.seen, key))

    def normalized(self, seen: Observations) -> Observations:
        """Return normalised observations; the statistics do not change."""
        return map_parts(seen, {key: self._normalizer(own) for key, own in self.statistics.items()})

    def restored(self, seen: Observations) -> Observations:
        """Return observations normalised and back again, as SB3 keeps the last ones of episodes for its replay buffers.

        That is the observation up to rounding, and up to `clip`.
        """
        of_parts = parts_of(self.before)
        return map_parts(seen, {key: self._restorer(own, of_parts[key]) for key, own in self.statistics.items()})

    def _restorer(self, own: RunningStatistics, space: Space) -> Callable[[Array], Array]:
        def restored(array: Array) -> Array:
            back: Array = self._normalizer(own)(array) * np.sqrt(own.var + self.epsilon) + own.mean
            return back.astype(space.dtype)

        return restored

    def _normalizer(self, own: RunningStatistics) -> Callable[[Array], Array]:
        mean, deviation = own.mean, np.sqrt(own.var + self.epsilon)

        def normalized(array: Array) -> Array:
            limited: Array = np.clip((array - mean) / deviation, -self.clip, self.clip)
            return limited.astype(np.float32)

        return normalized


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
