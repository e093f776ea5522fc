"""Scripted pursuers that see nothing but observations, for both sides of `waterworld_vs_pettingzoo.py`: NumPy alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# (what is seen, (rows, size); number of sensors; generator) -> (rows, 2) float32 in -1..1
Policy = Callable[[Any, int, np.random.Generator], Any]
FOOD_BLOCK, POISON_BLOCK = 2, 4  # of the distances, with speed features
CRUISE = 0.3  # thrust of a pursuer that senses nothing of interest


def uniform(seen: Any, n_sensors: int, rng: np.random.Generator) -> Any:
    """Thrust anywhere, whatever is seen."""
    return rng.uniform(-1, 1, (len(seen), 2)).astype(np.float32)


def chase(seen: Any, n_sensors: int, rng: np.random.Generator) -> Any:
    """Thrust towards the nearest food that is sensed, otherwise gently anywhere."""
    return _along_nearest(seen, FOOD_BLOCK, 1.0, n_sensors, rng)


def flee(seen: Any, n_sensors: int, rng: np.random.Generator) -> Any:
    """Thrust away from the nearest poison that is sensed, otherwise gently anywhere."""
    return _along_nearest(seen, POISON_BLOCK, -1.0, n_sensors, rng)


def _along_nearest(seen: Any, block: int, sign: float, n_sensors: int, rng: np.random.Generator) -> Any:
    distances = seen[:, block * n_sensors : (block + 1) * n_sensors]
    nearest = distances.argmin(axis=1)
    angles = 2 * np.pi * nearest / n_sensors
    towards = sign * np.stack((np.cos(angles), np.sin(angles)), axis=1)
    sensed = distances[np.arange(len(seen)), nearest] < 1
    anywhere = CRUISE * rng.uniform(-1, 1, (len(seen), 2))
    return np.where(sensed[:, None], towards, anywhere).clip(-1, 1).astype(np.float32)


POLICIES: Mapping[str, Policy] = {"uniform": uniform, "chase": chase, "flee": flee}
