"""A whole update of PPO, MaskablePPO or A2C for plain MLPs, as a float32 kernel compiled by numba.

With minibatches of a hundred rows PyTorch spends its time on dispatch: dozens of small operations each. Here a whole
update is one call. Matrix products are BLAS's; everything else is loops that LLVM vectorises. See `nets` for the layout
of the parameters.

Formulas: Schulman et al. 2017 (https://arxiv.org/abs/1707.06347), eq. 7 and 9, as in SB3's `ppo.py`; of A2C, the policy
gradient, as in SB3's `a2c.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_sb3.kernels.cache import inner_kernel, kernel
from marl_sb3.kernels.distributions import (
    categorical_delta,
    categorical_log_prob,
    forbid,
    gaussian_delta,
    gaussian_log_prob,
    sample,
    softmax,
)
from marl_sb3.kernels.layers import TANH, clear, matrix
from marl_sb3.kernels.minibatch import Samples, gather, normalise
from marl_sb3.kernels.nets import Nets, backward, forward, forward_both, workspace
from marl_sb3.kernels.optimizers import adam, norm
from marl_sb3.kernels.rmsprop import ADAM, RMSPROP_TF, rmsprop
from marl_sb3.types import Array, FloatArray

# The columns of the statistics of a minibatch.
POLICY_LOSS, VALUE_LOSS, ENTROPY_LOSS, APPROX_KL, CLIP_FRACTION, GRAD_NORM, LOSS, NUM_STATS = range(8)

_f = np.float32
_ZERO, _ONE, _TWO = _f(0.0), _f(1.0), _f(2.0)
_CLIP_EPS = _f(1e-6)  # torch.nn.utils.clip_grad_norm_
_Scalar = Any  # a float32, once compiled
_Space = tuple[Array, FloatArray, FloatArray]  # offsets of the layers, activations, gradients of the activations


class Settings(NamedTuple):
    """Hyperparameters of an update, as in SB3 and in PyTorch's optimizers.

    Attributes:
        clipped: whether the loss is PPO's clipped surrogate; if not, it is A2C's policy gradient.
        optimizer: ADAM, RMSPROP or RMSPROP_TF.
        beta1: of Adam.
        beta2: of Adam; the alpha of RMSprop.
    """

    normalize_advantage: bool
    clipped: bool
    clip_range: float
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    optimizer: int
    learning_rate: float
    beta1: float
    beta2: float
    eps: float


@inner_kernel
def _losses(
    nets: Nets,
    batch: Samples,
    rows: int,
    pi_out: FloatArray,
    vf_out: FloatArray,
    log_std: FloatArray,
    settings: Settings,
    pi_delta: FloatArray,
    vf_delta: FloatArray,
    log_std_grad: FloatArray,
    stats: Array,
) -> None:
    """Compute the parts of the loss over a minibatch, into `stats`, and its gradients of the nets' outputs."""
    low, high, clip = _ONE - _f(settings.clip_range), _ONE + _f(settings.clip_range), _f(settings.clip_range)
    inverse_rows = _ONE / _f(rows)
    by_entropy = -_f(settings.ent_coef) * inverse_rows
    by_value = _TWO * _f(settings.vf_coef) * inverse_rows
    policy_loss = value_loss = entropy = kl = clipped = np.float64(0.0)
    clear(log_std_grad)
    gaussian, sizes, int_actions, float_actions = nets.gaussian, nets.sizes, batch.int_actions, batch.float_actions
    log_probs, advantages, returns = batch.log_probs, batch.advantages, batch.returns
    for i in range(rows):
        if gaussian:
            log_prob = gaussian_log_prob(pi_out, log_std, float_actions, i)
        else:
            log_prob = categorical_log_prob(pi_out, sizes, int_actions, i)
        if settings.clipped:
            log_ratio = log_prob - log_probs[i]
            ratio = np.exp(log_ratio)
            bounded = low if ratio < low else (high if ratio > high else ratio)
            plain, bound = advantages[i] * ratio, advantages[i] * bounded
            # As torch differentiates min(plain, bound): the gradient is 0 where the bound is the smaller one.
            holds = bound < plain
            by_log_prob = _ZERO if holds else -plain * inverse_rows
            policy_loss -= bound if holds else plain
            kl += (ratio - _ONE) - log_ratio
            clipped += abs(ratio - _ONE) > clip
        else:
            by_log_prob = -advantages[i] * inverse_rows
            policy_loss -= advantages[i] * log_prob
        if gaussian:
            entropy += gaussian_delta(
                pi_out, log_std, float_actions, i, by_log_prob, by_entropy, pi_delta, log_std_grad
            )
        else:
            entropy += categorical_delta(pi_out, sizes, int_actions, i, by_log_prob, by_entropy, pi_delta)
        error = vf_out[i, 0] - returns[i]
        value_loss += error * error
        vf_delta[i, 0] = by_value * error
    stats[POLICY_LOSS] = policy_loss / rows
    stats[VALUE_LOSS] = value_loss / rows
    stats[ENTROPY_LOSS] = -entropy / rows
    stats[APPROX_KL] = kl / rows
    stats[CLIP_FRACTION] = clipped / rows
    stats[LOSS] = stats[POLICY_LOSS] + settings.ent_coef * stats[ENTROPY_LOSS] + settings.vf_coef * stats[VALUE_LOSS]


@kernel
def _minibatch(
    theta: FloatArray,
    grad: FloatArray,
    nets: Nets,
    batch: Samples,
    rows: int,
    settings: Settings,
    pi_space: _Space,
    vf_space: _Space,
    stats: Array,
) -> None:
    """Compute the gradient of the loss of a minibatch, into `grad`."""
    indices, floats = batch.indices[:rows], batch.floats[:rows]
    pi_offsets, pi_work, pi_delta = pi_space
    vf_offsets, vf_work, vf_delta = vf_space
    activation, one_hot = nets.activation, nets.one_hot
    pi_out = forward(theta, nets.pi, pi_offsets, pi_work, indices, floats, one_hot, rows, activation)
    vf_out = forward(theta, nets.vf, vf_offsets, vf_work, indices, floats, one_hot, rows, activation)
    outputs = nets.pi[-1, 1]
    pi_by_out = matrix(pi_delta, pi_offsets[-1], rows, outputs)
    if not nets.gaussian:
        forbid(pi_out, batch.allowed)
        softmax(pi_out, pi_by_out, nets.sizes)
    vf_by_out = matrix(vf_delta, vf_offsets[-1], rows, 1)
    log_std, log_std_grad = theta[nets.log_std :], grad[nets.log_std :]
    _losses(nets, batch, rows, pi_out, vf_out, log_std, settings, pi_by_out, vf_by_out, log_std_grad, stats)
    backward(theta, grad, nets.pi, pi_offsets, pi_work, pi_delta, indices, floats, one_hot, rows, activation)
    backward(theta, grad, nets.vf, vf_offsets, vf_work, vf_delta, indices, floats, one_hot, rows, activation)


@inner_kernel
def _optimize(
    theta: FloatArray, grad: FloatArray, m: FloatArray, v: FloatArray, scale: _Scalar, settings: Settings, step: int
) -> None:
    """Take one step of the optimizer with the gradient times `scale`."""
    s = settings
    if s.optimizer == ADAM:
        adam(theta, grad, m, v, scale, step, s.learning_rate, s.beta1, s.beta2, s.eps)
    else:
        rmsprop(theta, grad, v, scale, s.learning_rate, s.beta2, s.eps, s.optimizer == RMSPROP_TF)


@kernel
def train(
    theta: FloatArray,
    m: FloatArray,
    v: FloatArray,
    steps: int,
    nets: Nets,
    samples: Samples,
    batch: Samples,
    orders: Array,
    bounds: Array,
    settings: Settings,
    stats: Array,
) -> int:
    """One update, in place.

    Args:
        theta: (parameters,) float32; changed.
        m: (parameters,) float32, Adam's first moments; changed.
        v: (parameters,) float32, the optimizer's second moments; changed.
        steps: optimizer steps taken before.
        nets: `Nets`.
        samples: `Samples`, the rollout.
        batch: `Samples`, as workspace for the largest minibatch.
        orders: (epochs, N) int64; the order of samples in each epoch.
        bounds: (minibatches + 1,) int64; where in the order of an epoch each minibatch begins, and N.
        settings: `Settings`.
        stats: (epochs * minibatches, NUM_STATS) float64; filled.

    Returns:
        The number of minibatches done. The update stops after the first one with a loss or gradient that is not finite.
    """
    size = batch.returns.shape[0]
    pi_offsets, pi_size = workspace(nets.pi, size)
    vf_offsets, vf_size = workspace(nets.vf, size)
    pi_space = (pi_offsets, np.empty(pi_size, np.float32), np.empty(pi_size, np.float32))
    vf_space = (vf_offsets, np.empty(vf_size, np.float32), np.empty(vf_size, np.float32))
    grad = np.zeros_like(theta)
    done = 0
    for epoch in range(orders.shape[0]):
        for k in range(bounds.shape[0] - 1):
            order = orders[epoch, bounds[k] : bounds[k + 1]]
            rows = order.shape[0]
            gather(samples, order, batch)
            if settings.normalize_advantage and rows > 1:
                normalise(batch.advantages[:rows])
            _minibatch(theta, grad, nets, batch, rows, settings, pi_space, vf_space, stats[done])
            size_of_grad = norm(grad)
            stats[done, GRAD_NORM] = size_of_grad
            done += 1
            if not (np.isfinite(size_of_grad) and np.isfinite(stats[done - 1, LOSS])):
                return done
            scale = min(_ONE, _f(settings.max_grad_norm) / (_f(size_of_grad) + _CLIP_EPS))
            _optimize(theta, grad, m, v, scale, settings, steps + done)
    return done


def warm_up() -> None:
    """Call every kernel once, so that it is compiled: all policies use the same types of arguments."""
    layers = np.array([[1, 1, 0, 1]], dtype=np.int64)
    nets = Nets(layers, layers, 2, np.ones(1, dtype=np.int64), False, TANH, True)
    index, none, one = np.zeros((1, 1), np.int64), np.empty((1, 0), np.float32), np.zeros(1, np.float32)
    samples = Samples(index, none, index, none, none, one, one, one)
    batch = Samples(*(array.copy() for array in samples))
    theta, bounds = np.zeros(2, np.float32), np.arange(2)
    settings = Settings(True, True, 0.2, 0.0, 0.5, 0.5, ADAM, 1e-3, 0.9, 0.999, 1e-5)
    moments = theta.copy(), theta.copy()
    train(theta, *moments, 0, nets, samples, batch, index, bounds, settings, np.zeros((1, NUM_STATS)))
    offsets, size = workspace(layers, 1)
    work = np.empty(size, np.float32)
    logits = forward(theta, layers, offsets, work, index, none, True, 1, TANH)
    forward_both(theta, layers, offsets, work, layers, offsets, work, index, none, True, 1, TANH)
    sample(logits, none, nets.sizes, np.ones((1, 1), np.float32))
