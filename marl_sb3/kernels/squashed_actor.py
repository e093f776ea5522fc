"""The actors of SAC and TQC, Gaussians squashed by tanh: their actions and the gradients, as float32 kernels."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from marl_sb3.kernels.cache import inner_kernel, kernel, strict_kernel
from marl_sb3.kernels.mlp import Net, backward, forward, last_layer, outputs_size, parameters_size
from marl_sb3.types import FloatArray

_Scalar = Any  # a float, once compiled

_f = np.float32
_ZERO, _HALF, _ONE, _TWO = _f(0.0), _f(0.5), _f(1.0), _f(2.0)
_HALF_LOG_TWO_PI = _f(0.5 * math.log(2.0 * math.pi))
_LOG_STD_MIN, _LOG_STD_MAX = _f(-20.0), _f(2.0)
_SQUASH_EPS = _f(1e-6)


class Actor(NamedTuple):
    """A squashed Gaussian actor: a net, and two linear layers on its outputs.

    Attributes:
        latent: the net.
        mean: (1, 4) int64; the layer of the means, as a table of `Net`.
        log_std: (1, 4) int64; the layer of the log standard deviations.
    """

    latent: Net
    mean: Net
    log_std: Net


class Sampled(NamedTuple):
    """Actions of an actor, and what their gradients need; (rows, n) float32 unless said otherwise.

    Attributes:
        work: of the latent net.
        latent: (rows, units), its outputs.
        log_std: before it is limited.
        std: standard deviations.
        gaussian: the actions before they are squashed.
        actions: squashed, from -1 to 1.
        scaled: (gaussian - mean) / std.
        log_probs: (rows,), of the actions.
    """

    work: FloatArray
    latent: FloatArray
    log_std: FloatArray
    std: FloatArray
    gaussian: FloatArray
    actions: FloatArray
    scaled: FloatArray
    log_probs: FloatArray


@strict_kernel
def _squashing_slope(action: _Scalar) -> tuple[_Scalar, _Scalar]:
    """Return the slope of tanh where it is `action`, and the slope plus the 1e-6 whose logarithm SB3 takes.

    Near 1 and -1 the slope consists of rounding errors, which therefore have to be PyTorch's.
    """
    square = action * action
    slope = _ONE - square
    return slope, slope + _SQUASH_EPS


@inner_kernel
def sample(actor: Actor, observations: FloatArray, noise: FloatArray) -> Sampled:
    """Draw actions for (rows, inputs) observations, by (rows, n) standard normal noise."""
    rows, size = noise.shape
    work = np.empty(rows * outputs_size(actor.latent), np.float32)
    latent = forward(actor.latent, observations, work)
    mean = forward(actor.mean, latent, np.empty(rows * size, np.float32))
    log_std = forward(actor.log_std, latent, np.empty(rows * size, np.float32))
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
def sampled_actions(actor: Actor, observations: FloatArray, noise: FloatArray) -> FloatArray:
    """(rows, n) actions from -1 to 1, for (rows, inputs) float32 observations and (rows, n) standard normal noise."""
    return sample(actor, observations, noise).actions


@inner_kernel
def actor_gradients(
    actor: Actor, observations: FloatArray, sampled: Sampled, noise: FloatArray, by_action: FloatArray, ent_coef: float
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
    backward(actor.mean, sampled.latent, by_mean, by_mean, grad[sizes[0] : sizes[0] + sizes[1]], below)
    backward(actor.log_std, sampled.latent, by_log_std, by_log_std, grad[sizes[0] + sizes[1] :], more)
    deltas = np.empty_like(sampled.work)
    delta = last_layer(actor.latent, deltas, rows)
    for i in range(rows):
        for j in range(delta.shape[1]):
            delta[i, j] = below[i, j] + more[i, j]
    backward(actor.latent, observations, sampled.work, deltas, grad[: sizes[0]], np.empty((0, 0), np.float32))
    return grad
