"""A whole update of PPO, MaskablePPO or A2C for plain MLPs, as a float32 kernel compiled by numba.

With minibatches of a hundred rows PyTorch spends its time on dispatch: dozens of small operations each. Here a whole
update is one call. Matrix products are BLAS's; everything else is loops that LLVM vectorises.

Formulas: Schulman et al. 2017 (https://arxiv.org/abs/1707.06347), eq. 7 and 9, as in SB3's `ppo.py`; of A2C, the policy
gradient, as in SB3's `a2c.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel
from marl_sb3.extensions.fast.kernels.distributions import (
    categorical_delta,
    categorical_log_prob,
    forbid,
    gaussian_delta,
    gaussian_log_prob,
    sample,
    softmax,
)
from marl_sb3.extensions.fast.kernels.layers import LINEAR, TANH, clear, vector_at
from marl_sb3.extensions.fast.kernels.mlp import (
    Inputs,
    Net,
    backward,
    forward,
    last_layer,
    outputs_size,
    parameters_size,
    plain,
)
from marl_sb3.extensions.fast.kernels.optimizers import ADAM, Optimizer, clipping, norm, take_step
from marl_sb3.types import Array, FloatArray

# The columns of the statistics of a minibatch.
POLICY_LOSS, VALUE_LOSS, ENTROPY_LOSS, APPROX_KL, CLIP_FRACTION, GRAD_NORM, LOSS, NUM_STATS = range(8)

_f = np.float32
_ZERO, _ONE, _TWO = _f(0.0), _f(1.0), _f(2.0)
_ADV_EPS = _f(1e-8)


class Nets(NamedTuple):
    """Actor and critic."""

    trunk: Net  # layers that both have in common, before their own; an empty table: they have none
    pi: Net
    vf: Net
    log_std: int  # address of a Gaussian's log standard deviations
    gaussian: bool  # whether actions are real numbers
    sizes: Array  # (sub-distributions,) int64; number of categories of each; empty for a Gaussian


class Settings(NamedTuple):
    """Hyperparameters of an update, as in SB3."""

    normalize_advantage: bool
    clipped: bool  # whether the loss is PPO's clipped surrogate; if not, it is A2C's policy gradient
    clip_range: float
    ent_coef: float
    vf_coef: float
    max_grad_norm: float


class Samples(NamedTuple):
    """A rollout of N samples. Arrays that are not used have no columns."""

    inputs: Inputs  # see `Inputs`
    int_actions: Array  # (N, sub-distributions) int64
    float_actions: FloatArray  # (N, action size) float32
    allowed: FloatArray  # (N, sum of sizes) float32; action masks, 1 where an action was allowed, 0 where it was not
    log_probs: FloatArray  # (N,) float32, of the actions when they were taken
    advantages: FloatArray  # (N,) float32
    returns: FloatArray  # (N,) float32


@inner_kernel
def _gather(samples: Samples, order: Array, batch: Samples) -> None:
    """Copy the samples of a minibatch to the front of the arrays of `batch`."""
    _gather_rows(samples.inputs.indices, order, batch.inputs.indices)
    _gather_rows(samples.inputs.floats, order, batch.inputs.floats)
    _gather_rows(samples.int_actions, order, batch.int_actions)
    _gather_rows(samples.float_actions, order, batch.float_actions)
    _gather_rows(samples.allowed, order, batch.allowed)
    _gather_numbers(samples.log_probs, order, batch.log_probs)
    _gather_numbers(samples.advantages, order, batch.advantages)
    _gather_numbers(samples.returns, order, batch.returns)


@inner_kernel
def _gather_rows(source: Array, order: Array, target: Array) -> None:
    columns = source.shape[1]
    if columns == 0:
        return
    for i in range(order.shape[0]):
        row = order[i]
        for j in range(columns):
            target[i, j] = source[row, j]


@inner_kernel
def _gather_numbers(source: FloatArray, order: Array, target: FloatArray) -> None:
    for i in range(order.shape[0]):
        target[i] = source[order[i]]


@inner_kernel
def _normalise(advantages: FloatArray) -> None:
    """(advantages - mean) / (std + 1e-8), in place, with the unbiased std, as torch's."""
    n = advantages.shape[0]
    mean = np.float64(0.0)
    for i in range(n):
        mean += advantages[i]
    mean /= n
    variance = np.float64(0.0)
    for i in range(n):
        difference = advantages[i] - mean
        variance += difference * difference
    scale = _ONE / (_f(math.sqrt(variance / (n - 1))) + _ADV_EPS)
    for i in range(n):
        advantages[i] = (advantages[i] - _f(mean)) * scale


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
def gradients(
    nets: Nets,
    batch: Samples,
    rows: int,
    settings: Settings,
    trunk_space: tuple[FloatArray, FloatArray],
    pi_space: tuple[FloatArray, FloatArray],
    vf_space: tuple[FloatArray, FloatArray],
    grad: FloatArray,
    stats: Array,
) -> None:
    """Compute the gradients of the loss of a minibatch: the first `rows` rows of `batch`.

    Args:
        trunk_space: two arrays for the activations of the common layers and their gradients, see `mlp`.
        pi_space: the same for the actor.
        vf_space: the same for the critic.
        grad: (parameters,); filled with the gradients for the actor, the critic, the common layers and `log_std`.
        stats: (NUM_STATS,) float64; filled.
    """
    seen = Inputs(batch.inputs.indices[:rows], batch.inputs.floats[:rows])
    shares = nets.trunk.table.shape[0] > 0
    inputs = plain(forward(nets.trunk, seen, trunk_space[0])) if shares else seen
    pi_work, pi_deltas = pi_space
    vf_work, vf_deltas = vf_space
    pi_out, vf_out = forward(nets.pi, inputs, pi_work), forward(nets.vf, inputs, vf_work)
    pi_delta, vf_delta = last_layer(nets.pi, pi_deltas, rows), last_layer(nets.vf, vf_deltas, rows)
    if not nets.gaussian:
        forbid(pi_out, batch.allowed)
        softmax(pi_out, pi_delta, nets.sizes)
    begin_vf = parameters_size(nets.pi)
    begin_trunk = begin_vf + parameters_size(nets.vf)
    begin_log_std = begin_trunk + parameters_size(nets.trunk)
    of_log_std = grad[begin_log_std:]
    log_std = vector_at(nets.log_std, of_log_std.shape[0])
    _losses(nets, batch, rows, pi_out, vf_out, log_std, settings, pi_delta, vf_delta, of_log_std, stats)
    none = np.empty((0, 0), np.float32)
    below = last_layer(nets.trunk, trunk_space[1], rows) if shares else none
    more = np.empty_like(below)
    backward(nets.pi, inputs, pi_work, pi_deltas, grad[:begin_vf], below)
    backward(nets.vf, inputs, vf_work, vf_deltas, grad[begin_vf:begin_trunk], more)
    if shares:
        below += more
        backward(nets.trunk, seen, trunk_space[0], trunk_space[1], grad[begin_trunk:begin_log_std], none)


@inner_kernel
def _space(net: Net, rows: int) -> tuple[FloatArray, FloatArray]:
    size = rows * outputs_size(net)
    return np.empty(size, np.float32), np.empty(size, np.float32)


@kernel
def train(
    nets: Nets,
    optimizer: Optimizer,
    samples: Samples,
    batch: Samples,
    orders: Array,
    bounds: Array,
    settings: Settings,
    stats: Array,
) -> int:
    """One update, in place.

    Args:
        optimizer: its parameters are the actor's, the critic's, those of the common layers and `log_std`.
        samples: the rollout.
        batch: workspace for the largest minibatch.
        orders: (epochs, N) int64; the order of samples in each epoch.
        bounds: (minibatches + 1,) int64; where in the order of an epoch each minibatch begins, and N.
        stats: (epochs * minibatches, NUM_STATS) float64; filled.

    Returns:
        The number of minibatches done. The update stops before the step of the optimizer in the first one with a loss
        or gradient that is not finite.
    """
    size = batch.returns.shape[0]
    trunk_space, pi_space, vf_space = _space(nets.trunk, size), _space(nets.pi, size), _space(nets.vf, size)
    grad = np.zeros(optimizer.table[:, 0].sum(), np.float32)
    done = 0
    for epoch in range(orders.shape[0]):
        for k in range(bounds.shape[0] - 1):
            order = orders[epoch, bounds[k] : bounds[k + 1]]
            rows = order.shape[0]
            _gather(samples, order, batch)
            if settings.normalize_advantage and rows > 1:
                _normalise(batch.advantages[:rows])
            gradients(nets, batch, rows, settings, trunk_space, pi_space, vf_space, grad, stats[done])
            size_of_grad = norm(grad)
            stats[done, GRAD_NORM] = size_of_grad
            done += 1
            if not (np.isfinite(size_of_grad) and np.isfinite(stats[done - 1, LOSS])):
                return done
            take_step(optimizer, grad, clipping(size_of_grad, settings.max_grad_norm))
    return done


# For few rows a call from Python costs as much as a net, and arrays in tuples cost more than arrays.


@kernel
def outputs_of(table: Array, hidden: int, indices: Array, floats: FloatArray, work: FloatArray) -> FloatArray:
    """Run an actor or critic; arguments as in `Net`, `Inputs` and `forward`."""
    return forward(Net(table, hidden, LINEAR), Inputs(indices, floats), work)


@kernel
def outputs_of_both(
    pi: Array,
    vf: Array,
    hidden: int,
    indices: Array,
    floats: FloatArray,
    pi_work: FloatArray,
    vf_work: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Run `outputs_of` for actor and critic in one call."""
    inputs = Inputs(indices, floats)
    return forward(Net(pi, hidden, LINEAR), inputs, pi_work), forward(Net(vf, hidden, LINEAR), inputs, vf_work)


@kernel
def features_of(table: Array, activation: int, indices: Array, floats: FloatArray, work: FloatArray) -> FloatArray:
    """Run the common layers; arguments as in `outputs_of`."""
    return forward(Net(table, activation, activation), Inputs(indices, floats), work)


def warm_up() -> None:
    """Call every kernel once, so that it is compiled: all policies use the same types of arguments."""
    numbers = np.zeros((5, 4), np.float32)
    layer = np.array([[1, 1, numbers[0].ctypes.data, numbers[1].ctypes.data]])
    net = Net(layer, TANH, LINEAR)
    nets = Nets(Net(layer[:0], TANH, TANH), net, net, 0, False, np.ones(1, np.int64))
    addresses = [row.ctypes.data for row in numbers[1:]]
    index, none, one = np.zeros((1, 1), np.int64), np.empty((1, 0), np.float32), np.zeros(1, np.float32)
    samples = Samples(Inputs(index, none), index, none, none, one, one, one)
    batch = Samples(Inputs(index.copy(), none), *(array.copy() for array in samples[1:]))
    optimizer = Optimizer(np.array([[4, *addresses]]), ADAM, 1e-3, 0.9, 0.999, 1e-5)
    settings = Settings(True, True, 0.2, 0.0, 0.5, 0.5)
    train(nets, optimizer, samples, batch, index, np.arange(2), settings, np.zeros((1, NUM_STATS)))
    features_of(layer, TANH, index, none, np.empty(1, np.float32))
    logits = outputs_of(layer, TANH, index, none, np.empty(1, np.float32))
    outputs_of_both(layer, layer, TANH, index, none, np.empty(1, np.float32), np.empty(1, np.float32))
    sample(logits, none, nets.sizes, np.ones((1, 1), np.float32))
