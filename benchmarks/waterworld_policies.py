"""Scripted policies for both sides of `waterworld_vs_pettingzoo.py`; this file needs only NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

# (observations, (rows, size); number of sensors; generator) -> actions, (rows, 2) float32 in -1..1
Policy = Callable[[Any, int, np.random.Generator], Any]
FOOD_BLOCK, POISON_BLOCK = 2, 4  # blocks of an observation with distances
CRUISE = 0.3  # largest thrust of a pursuer that senses no target


def uniform(seen: Any, n_sensors: int, rng: np.random.Generator) -> Any:
    """Thrust in a random direction."""
    return rng.uniform(-1, 1, (len(seen), 2)).astype(np.float32)


def chase(seen: Any, n_sensors: int, rng: np.random.Generator) -> Any:
    """Thrust towards the nearest food that is sensed; without any, gently in a random direction."""
    return _along_nearest(seen, FOOD_BLOCK, 1.0, n_sensors, rng)


def flee(seen: Any, n_sensors: int, rng: np.random.Generator) -> Any:
    """Thrust away from the nearest poison that is sensed; without any, gently in a random direction."""
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
