"""Compare two Waterworlds, for `waterworld_vs_pettingzoo.py`: replay episodes, and compare distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from marl_sb3.compiling import OBSERVE
from marl_sb3.envs.waterworld import WaterworldEnv
from marl_sb3.types import Array

EVENTS = ("food_encounters", "captures", "poison_hits")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BLOCKS = ("obstacle distance", "wall distance", "food distance", "food speed", "poison distance", "poison speed")
BLOCKS += ("pursuer distance", "pursuer speed", "touches food", "touched poison")
TRACED = ("begins", "positions", "velocities", "moved", "actions", "rewards", "seen")


# --- Replay ----------------------------------------------------------------------------------------------------------


def replay(trace: Mapping[str, Array], settings: Mapping[str, Any]) -> dict[str, float]:
    """Play the episodes of a trace with our rules; return the largest differences, and how many numbers differ.

    What both move gets the position and velocity of the trace; what only one moves differs from then on.
    """
    env = WaterworldEnv(**settings)
    batch, state, n_pursuers = env.batch, env.batch.states, env.parameters.n_pursuers
    differences: dict[str, list[Array]] = {"position": [], "velocity": [], "observation": [], "reward": []}
    for values in zip(*(trace[name] for name in TRACED), strict=True):
        begins, positions, velocities, moved, actions, rewards, seen = values
        paid = np.zeros((1, n_pursuers))
        if begins:
            env.reset(seed=0)
            state.positions[0], state.velocities[0] = positions, velocities
        else:
            paid = batch.step(actions[None]).rewards
            put = n_pursuers + np.flatnonzero(moved & (state.moved[0] == 1))
            state.positions[0][:, put], state.velocities[0][:, put] = positions[:, put], velocities[:, put]
        batch.run(OBSERVE)
        differences["position"].append(state.positions[0] - positions)
        differences["velocity"].append(state.velocities[0] - velocities)
        differences["observation"].append(batch.observed[0] - seen)
        differences["reward"].append(paid[0] - rewards)
    largest = {f"largest {name} difference": float(np.abs(found).max()) for name, found in differences.items()}
    return {
        "env steps": len(trace["begins"]) - int(trace["begins"].sum()),
        **largest,
        **_unlike("rewards", differences["reward"], 1e-6),
        # A ray that barely hits a rim on one side may miss it on the other.
        **_unlike("observed numbers", differences["observation"], 1e-3),
    }


def _unlike(name: str, differences: Sequence[Array], tolerance: float) -> dict[str, int]:
    apart = np.abs(differences)
    return {name: apart.size, f"{name} that differ": int((apart > tolerance).sum())}


# --- Distributions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """The episodes of a side, all of the same length."""

    observations: Array  # (episodes, kept steps, P, size)
    returns: Array  # (episodes, P)
    counts: Array  # (episodes, 3 events, P)
    lengths: Array  # (episodes,)


def compare_numbers(ours: Record, theirs: Record) -> dict[str, dict[str, list[Any]]]:
    """Return name -> statistics of both sides and z, each with a value per pursuer."""
    sides = {
        "return": (ours.returns, theirs.returns),
        **{event: (ours.counts[:, place], theirs.counts[:, place]) for place, event in enumerate(EVENTS)},
        "episode length": (ours.lengths[:, None], theirs.lengths[:, None]),
    }
    return {
        name: {**_numbers("our", mine), **_numbers("their", other), "z": z_scores(mine, other).tolist()}
        for name, (mine, other) in sides.items()
    }


def compare_observations(ours: Record, theirs: Record, n_sensors: int) -> dict[str, dict[str, Any]]:
    """Return block of the observation -> statistics of both sides and their differences, over all pursuers."""
    edges = [*range(0, 8 * n_sensors + 1, n_sensors), 8 * n_sensors + 1, 8 * n_sensors + 2]
    return {
        name: _compare_block(ours.observations[..., first:end], theirs.observations[..., first:end])
        for name, (first, end) in zip(BLOCKS, pairwise(edges), strict=True)
    }


def _compare_block(ours: Array, theirs: Array) -> dict[str, Any]:
    z = np.abs(z_scores(ours.mean(axis=1), theirs.mean(axis=1)))  # (P, components)
    components = zip(np.moveaxis(ours, -1, 0), np.moveaxis(theirs, -1, 0), strict=True)
    return {
        **_moments("our", ours),
        **_moments("their", theirs),
        "largest difference of means": float(np.abs(ours.mean(axis=(0, 1)) - theirs.mean(axis=(0, 1))).max()),
        "largest KS distance": max(ks_distance(mine, other) for mine, other in components),
        "share of |z| > 2": float((z > 2).mean()),
        "largest |z|": float(z.max()),
    }


def _moments(side: str, values: Array) -> dict[str, Any]:
    quantiles = np.quantile(values, QUANTILES).tolist()
    return {f"{side} mean": float(values.mean()), f"{side} SD": float(values.std()), f"{side} quantiles": quantiles}


def _numbers(side: str, values: Array) -> dict[str, list[Any]]:
    mean, error = mean_and_error(values)
    quantiles = np.quantile(values, QUANTILES, axis=0)
    return {f"{side} mean": mean.tolist(), f"{side} error": error.tolist(), f"{side} quantiles": quantiles.tolist()}


def mean_and_error(values: Array) -> tuple[Array, Array]:
    """Return the means over the first axis, the episodes, and their standard errors."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def z_scores(ours: Array, theirs: Array) -> Array:
    """Return the difference of the means in standard errors; where these are 0: 0 for equal means, 99 for others."""
    (mean, error), (their_mean, their_error) = mean_and_error(ours), mean_and_error(theirs)
    apart, errors = mean - their_mean, np.sqrt(error**2 + their_error**2)
    scores: Array = np.divide(apart, errors, out=np.where(apart == 0, 0.0, 99.0), where=errors > 0)
    return scores


def ks_distance(ours: Array, theirs: Array) -> float:
    """Return the Kolmogorov-Smirnov distance: the largest difference of the empirical distribution functions."""
    ours, theirs = np.sort(ours, axis=None), np.sort(theirs, axis=None)
    every = np.concatenate((ours, theirs))
    shares = [np.searchsorted(side, every, side="right") / len(side) for side in (ours, theirs)]
    return float(np.abs(shares[0] - shares[1]).max())
