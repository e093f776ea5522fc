"""A gradient step of SAC (Haarnoja et al. 2018) and of TQC (Kuznetsov et al. 2020), as in SB3."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_sb3.kernels.batch import Batch, quantile_loss
from marl_sb3.kernels.cache import inner_kernel, kernel
from marl_sb3.kernels.critics import (
    Critics,
    action_gradients,
    gradients,
    joined,
    lowest,
    squared_errors,
    values,
    works,
)
from marl_sb3.kernels.memory import vector_at
from marl_sb3.kernels.mlp import Adam, move_towards, step_adam
from marl_sb3.kernels.squashed_actor import Actor, actor_gradients, sample
from marl_sb3.types import Array, FloatArray

_Scalar = Any  # a float, once compiled

# What `update` returns.
ENT_COEF, ENT_COEF_LOSS, ACTOR_LOSS, CRITIC_LOSS, NUM_STATS = range(5)

_f = np.float32
_ZERO, _ONE = _f(0.0), _f(1.0)


class Entropy(NamedTuple):
    """The entropy coefficient.

    Attributes:
        optimizer: of its logarithm; without parameters if it is fixed.
        value: of a fixed one.
        target: the entropy that a learned one aims at.
    """

    optimizer: Adam
    value: float
    target: float


@inner_kernel
def _entropy_step(entropy: Entropy, log_probs: FloatArray, stats: Array) -> _Scalar:
    """Update a learned entropy coefficient; returns its value before that."""
    if entropy.optimizer.table.shape[0] == 0:
        stats[ENT_COEF] = entropy.value
        return entropy.value
    log_ent_coef = vector_at(entropy.optimizer.table[0, 1], 1)[0]
    surplus = np.float64(0.0)
    for i in range(log_probs.shape[0]):
        surplus += log_probs[i] + entropy.target
    surplus /= log_probs.shape[0]
    ent_coef = float(np.exp(log_ent_coef))
    stats[ENT_COEF], stats[ENT_COEF_LOSS] = ent_coef, -log_ent_coef * surplus
    step_adam(entropy.optimizer, np.full(1, -surplus, np.float32), 1.0)
    return ent_coef


@inner_kernel
def _quantile_slopes(
    found: FloatArray, following: FloatArray, dropped: int, batch: Batch, bonus: FloatArray, slopes: FloatArray
) -> _Scalar:
    """Compute TQC's critic loss; `slopes`, (critics, rows, quantiles), is filled with its gradients.

    Args:
        found: (critics, rows, quantiles) of the actions in the batch.
        following: (critics, rows, quantiles) of the next actions.
        dropped: how many of the highest ones, of all critics together, are left out.
        bonus: (rows,), subtracted from the next values.
    """
    count, rows, quantiles = found.shape
    pooled = np.empty(count * quantiles, np.float32)
    kept = count * quantiles - dropped
    total, scale = np.float64(0.0), 1.0 / (rows * count * quantiles * kept)
    for i in range(rows):
        for k in range(count):
            for j in range(quantiles):
                pooled[k * quantiles + j] = following[k, i, j]
        pooled.sort()
        targets = pooled[:kept]
        for j in range(kept):
            targets[j] = batch.rewards[i] + batch.discounts[i] * (targets[j] - bonus[i])
        for k in range(count):
            total += quantile_loss(found[k, i], targets, scale, slopes[k, i])
    return total * scale


@inner_kernel
def _td_slopes(
    found: FloatArray, following: FloatArray, batch: Batch, bonus: FloatArray, slopes: FloatArray
) -> _Scalar:
    """Compute SAC's critic loss; see `_quantile_slopes`."""
    targets, _ = lowest(following)
    for i in range(targets.shape[0]):
        targets[i] = batch.rewards[i] + batch.discounts[i] * (targets[i] - bonus[i])
    return 0.5 * squared_errors(found, targets, 0.5, slopes)


@inner_kernel
def _value_slopes(found: FloatArray, quantiles: bool, slopes: FloatArray) -> _Scalar:
    """Return the mean value of actions; `slopes`, of the shape of `found`, is filled with the gradients of minus it."""
    count, rows, outputs = found.shape
    total = np.float64(0.0)
    if quantiles:
        scale = _f(1.0 / (rows * count * outputs))
        for k in range(count):
            for i in range(rows):
                for j in range(outputs):
                    total += found[k, i, j]
                    slopes[k, i, j] = -scale
        return total / (rows * count * outputs)
    least, whose = lowest(found)
    for i in range(rows):
        total += least[i]
        for k in range(count):
            slopes[k, i, 0] = -_ONE / _f(rows) if k == whose[i] else _ZERO
    return total / rows


@kernel
def update(
    actor: Actor,
    actor_optimizer: Adam,
    critics: Critics,
    critic_targets: Critics,
    critic_optimizer: Adam,
    entropy: Entropy,
    batch: Batch,
    noise: FloatArray,
    next_noise: FloatArray,
    dropped: int,
    moved: Array,
    tau: float,
) -> Array:
    """Take one gradient step of the entropy coefficient, of the critics and of the actor.

    Args:
        noise: (rows, n) standard normal, for the actions.
        next_noise: (rows, n) standard normal, for the next actions.
        dropped: how many quantiles of all critics together TQC leaves out; -1 for SAC.
        moved: targets that are moved at the end; see `move_towards`.

    Returns:
        (NUM_STATS,) float64.
    """
    rows, size = noise.shape
    stats = np.full(NUM_STATS, np.nan)
    sampled = sample(actor, batch.observations, noise)
    ent_coef = _entropy_step(entropy, sampled.log_probs, stats)

    following = sample(actor, batch.next_observations, next_noise)
    bonus = _f(ent_coef) * following.log_probs
    work = works(critics, rows)
    next_values = values(critic_targets, joined(batch.next_observations, following.actions), work)
    inputs = joined(batch.observations, batch.actions)
    found = values(critics, inputs, work)
    slopes = np.empty_like(found)
    if dropped >= 0:
        stats[CRITIC_LOSS] = _quantile_slopes(found, next_values, dropped, batch, bonus, slopes)
    else:
        stats[CRITIC_LOSS] = _td_slopes(found, next_values, batch, bonus, slopes)
    step_adam(critic_optimizer, gradients(critics, inputs, work, slopes), 1.0)

    inputs = joined(batch.observations, sampled.actions)
    found = values(critics, inputs, work)
    value = _value_slopes(found, dropped >= 0, slopes)
    by_action = action_gradients(critics, inputs, work, slopes, size)
    stats[ACTOR_LOSS] = ent_coef * sampled.log_probs.mean() - value
    step_adam(actor_optimizer, actor_gradients(actor, batch.observations, sampled, noise, by_action, ent_coef), 1.0)
    move_towards(moved, tau)
    return stats
