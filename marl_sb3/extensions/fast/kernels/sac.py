"""A gradient step of SAC (Haarnoja et al. 2018) and of TQC (Kuznetsov et al. 2020), as in SB3, and their actions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel, strict_kernel
from marl_sb3.extensions.fast.kernels.layers import vector_at
from marl_sb3.extensions.fast.kernels.mlp import (
    Net,
    backward,
    forward,
    last_layer,
    outputs_size,
    parameters_size,
    plain,
)
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer, move_towards, take_step
from marl_sb3.extensions.fast.kernels.replay import (
    Batch,
    Critics,
    action_gradients,
    gradients,
    joined,
    lowest,
    quantile_loss,
    squared_errors,
    values,
    works,
)
from marl_sb3.types import Array, FloatArray

_Scalar = Any  # a float, once compiled

# What `update` returns.
ENT_COEF, ENT_COEF_LOSS, ACTOR_LOSS, CRITIC_LOSS, NUM_STATS = range(5)

_f = np.float32
_ZERO, _HALF, _ONE, _TWO = _f(0.0), _f(0.5), _f(1.0), _f(2.0)
_HALF_LOG_TWO_PI = _f(0.5 * math.log(2.0 * math.pi))
_LOG_STD_MIN, _LOG_STD_MAX = _f(-20.0), _f(2.0)
_SQUASH_EPS = _f(1e-6)

# --- Actors: Gaussians squashed by tanh ------------------------------------------------------------------------------


class ActorNet(NamedTuple):
    """A squashed Gaussian actor: a net, and two linear layers on its outputs."""

    latent: Net  # the net
    mean: Net  # (1, 4) int64; the layer of the means, as a table of `Net`
    log_std: Net  # (1, 4) int64; the layer of the log standard deviations


class Sampled(NamedTuple):
    """Actions of an actor, and what their gradients need; (rows, n) float32 unless said otherwise."""

    work: FloatArray  # of the latent net
    latent: FloatArray  # (rows, units), its outputs
    log_std: FloatArray  # before it is limited
    std: FloatArray  # standard deviations
    gaussian: FloatArray  # the actions before they are squashed
    actions: FloatArray  # squashed, from -1 to 1
    scaled: FloatArray  # (gaussian - mean) / std
    log_probs: FloatArray  # (rows,), of the actions


@strict_kernel
def _squashing_slope(action: _Scalar) -> tuple[_Scalar, _Scalar]:
    """Return the slope of tanh where it is `action`, and the slope plus the 1e-6 whose logarithm SB3 takes.

    Near 1 and -1 the slope consists of rounding errors, which therefore have to be PyTorch's.
    """
    square = action * action
    slope = _ONE - square
    return slope, slope + _SQUASH_EPS


@inner_kernel
def sample(actor: ActorNet, observations: FloatArray, noise: FloatArray) -> Sampled:
    """Draw actions for (rows, inputs) observations, by (rows, n) standard normal noise."""
    rows, size = noise.shape
    work = np.empty(rows * outputs_size(actor.latent), np.float32)
    latent = forward(actor.latent, plain(observations), work)
    mean = forward(actor.mean, plain(latent), np.empty(rows * size, np.float32))
    log_std = forward(actor.log_std, plain(latent), np.empty(rows * size, np.float32))
    std, gaussian, actions = np.empty_like(mean), np.empty_like(mean), np.empty_like(mean)
    scaled, log_probs = np.empty_like(mean), np.empty(rows, np.float32)
    for i in range(rows):
        total = _ZERO
        for j in range(size):
            limited = min(max(log_std[i, j], _LOG_STD_MIN), _LOG_STD_MAX)
            std[i, j] = np.exp(limited)
            gaussian[i, j] = mean[i, j] + std[i, j] * noise[i, j]
            action = _f(math.tanh(float(gaussian[i, j])))
            # From the rounded action, as in PyTorch: added to a large mean, noise loses digits.
            z = (gaussian[i, j] - mean[i, j]) / std[i, j]
            _, kept = _squashing_slope(action)
            total -= _HALF * z * z + limited + _HALF_LOG_TWO_PI + np.log(kept)
            scaled[i, j], actions[i, j] = z, action
        log_probs[i] = total
    return Sampled(work, latent, log_std, std, gaussian, actions, scaled, log_probs)


@kernel
def sampled_actions(actor: ActorNet, observations: FloatArray, noise: FloatArray) -> FloatArray:
    """(rows, n) actions from -1 to 1, for (rows, inputs) float32 observations and (rows, n) standard normal noise."""
    return sample(actor, observations, noise).actions


@inner_kernel
def actor_gradients(
    actor: ActorNet,
    observations: FloatArray,
    sampled: Sampled,
    noise: FloatArray,
    by_action: FloatArray,
    ent_coef: float,
) -> FloatArray:
    """Return the gradients of the actor's parameters, in the order of its layers.

    Args:
        by_action: (rows, n) gradients of the actions through the critics.
    """
    rows, size = noise.shape
    by_log_prob = _f(ent_coef / rows)
    by_mean, by_log_std = np.empty(rows * size, np.float32), np.empty(rows * size, np.float32)
    for i in range(rows):
        for j in range(size):
            action, z, std = sampled.actions[i, j], sampled.scaled[i, j], sampled.std[i, j]
            slope, kept = _squashing_slope(action)
            through = by_action[i, j] * slope + by_log_prob * _TWO * action * slope / kept
            # The log-probability depends on the mean directly and through the action: both cancel.
            by_mean[i * size + j] = through
            by_std = through * noise[i, j] + by_log_prob * ((z * z - z * noise[i, j] - _ONE) / std)
            inside = _LOG_STD_MIN <= sampled.log_std[i, j] <= _LOG_STD_MAX
            by_log_std[i * size + j] = by_std * std if inside else _ZERO
    sizes = parameters_size(actor.latent), parameters_size(actor.mean)
    grad = np.empty(sizes[0] + 2 * sizes[1], np.float32)
    below, more = np.empty_like(sampled.latent), np.empty_like(sampled.latent)
    # Linear layers need no activations for the way back: any array of their size will do.
    backward(actor.mean, plain(sampled.latent), by_mean, by_mean, grad[sizes[0] : sizes[0] + sizes[1]], below)
    backward(actor.log_std, plain(sampled.latent), by_log_std, by_log_std, grad[sizes[0] + sizes[1] :], more)
    deltas = np.empty_like(sampled.work)
    delta = last_layer(actor.latent, deltas, rows)
    for i in range(rows):
        for j in range(delta.shape[1]):
            delta[i, j] = below[i, j] + more[i, j]
    backward(actor.latent, plain(observations), sampled.work, deltas, grad[: sizes[0]], np.empty((0, 0), np.float32))
    return grad


# --- The update ------------------------------------------------------------------------------------------------------


class Entropy(NamedTuple):
    """The entropy coefficient."""

    optimizer: Optimizer  # of its logarithm; without parameters if it is fixed
    value: float  # of a fixed one
    target: float  # the entropy that a learned one aims at


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
    take_step(entropy.optimizer, np.full(1, -surplus, np.float32), 1.0)
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
    actor: ActorNet,
    actor_optimizer: Optimizer,
    critics: Critics,
    critic_targets: Critics,
    critic_optimizer: Optimizer,
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
    take_step(critic_optimizer, gradients(critics, inputs, work, slopes), 1.0)

    inputs = joined(batch.observations, sampled.actions)
    found = values(critics, inputs, work)
    value = _value_slopes(found, dropped >= 0, slopes)
    by_action = action_gradients(critics, inputs, work, slopes, size)
    stats[ACTOR_LOSS] = ent_coef * sampled.log_probs.mean() - value
    take_step(actor_optimizer, actor_gradients(actor, batch.observations, sampled, noise, by_action, ent_coef), 1.0)
    move_towards(moved, tau)
    return stats
