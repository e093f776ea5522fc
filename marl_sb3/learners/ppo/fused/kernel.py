"""Forward pass and update of PPO, MaskablePPO and A2C for plain MLPs, as float32 kernels compiled by numba.

With minibatches of a hundred rows PyTorch spends its time on dispatch: dozens of small operations each. Here a whole
update is one call. Matrix products are BLAS's; everything else is loops that LLVM vectorises.

Layout. All parameters of a policy lie in one flat array `theta`; the same goes for gradients and Adam's moments. A
net (actor or critic) is a table with a row per layer: `[inputs, outputs, weight offset, bias offset]`. Weights are
stored as (inputs, outputs), transposed with respect to PyTorch, so that a one-hot input selects an adjoining row.
Activations of layer l are in a workspace at `offsets[l]`, (rows, outputs) each.

Formulas: Schulman et al. 2017 (https://arxiv.org/abs/1707.06347), eq. 7 and 9, as in SB3's `ppo.py`; of A2C, the policy
gradient, as in SB3's `a2c.py`. The logit of a forbidden action is -1e8, as in sb3-contrib's `MaskableCategorical`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from marl_sb3.learners.fused.adam import adam, norm
from marl_sb3.learners.fused.kernel_cache import inner_kernel, kernel
from marl_sb3.learners.fused.layers import LINEAR, TANH, activate, clear, matrix, through_activation
from marl_sb3.learners.fused.rmsprop import ADAM, RMSPROP_TF, rmsprop
from marl_sb3.types import Array, FloatArray

# The columns of the statistics of a minibatch.
POLICY_LOSS, VALUE_LOSS, ENTROPY_LOSS, APPROX_KL, CLIP_FRACTION, GRAD_NORM, LOSS, NUM_STATS = range(8)


class Nets(NamedTuple):
    """Shape of a policy.

    Attributes:
        pi: the actor's layers, a table as above.
        vf: the critic's.
        log_std: offset in `theta` of a Gaussian's log standard deviations.
        sizes: (sub-distributions,) int64; number of categories of each; empty for a Gaussian.
        gaussian: whether actions are real numbers.
        activation: TANH or RELU.
        one_hot: whether inputs are given by the positions of their ones.
    """

    pi: Array
    vf: Array
    log_std: int
    sizes: Array
    gaussian: bool
    activation: int
    one_hot: bool


class Samples(NamedTuple):
    """A rollout of N samples. Arrays that are not used have no columns.

    Attributes:
        indices: (N, ones) int64; one-hot inputs.
        floats: (N, inputs) float32; other inputs.
        int_actions: (N, sub-distributions) int64.
        float_actions: (N, action size) float32.
        allowed: (N, sum of sizes) float32; action masks, 1 where an action was allowed, 0 where it was not.
        log_probs: (N,) float32, of the actions when they were taken.
        advantages: (N,) float32.
        returns: (N,) float32.
    """

    indices: Array
    floats: FloatArray
    int_actions: Array
    float_actions: FloatArray
    allowed: FloatArray
    log_probs: FloatArray
    advantages: FloatArray
    returns: FloatArray


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


_f = np.float32
_ZERO, _HALF, _ONE, _TWO = _f(0.0), _f(0.5), _f(1.0), _f(2.0)
_HALF_LOG_TWO_PI = _f(0.5 * math.log(2.0 * math.pi))
_CLIP_EPS = _f(1e-6)  # torch.nn.utils.clip_grad_norm_
_ADV_EPS = _f(1e-8)
_FORBIDDEN = _f(-1e8)  # sb3-contrib's HUGE_NEG
_Scalar = Any  # a float32, once compiled
_Space = tuple[Array, FloatArray, FloatArray]  # offsets of the layers, activations, gradients of the activations


@inner_kernel
def first_layer(indices: Array, floats: FloatArray, one_hot: bool, weight: FloatArray, out: FloatArray) -> None:
    """out: (rows, outputs) = inputs @ weight, where one-hot inputs are given by the positions of their ones."""
    if not one_hot:
        np.dot(floats, weight, out)
        return
    rows, outputs = out.shape
    for i in range(rows):
        row = out[i]
        first = weight[indices[i, 0]]
        for j in range(outputs):
            row[j] = first[j]
        for k in range(1, indices.shape[1]):
            more = weight[indices[i, k]]
            for j in range(outputs):
                row[j] += more[j]


@kernel
def forward(
    theta: FloatArray,
    table: Array,
    offsets: Array,
    work: FloatArray,
    indices: Array,
    floats: FloatArray,
    one_hot: bool,
    rows: int,
    activation: int,
) -> FloatArray:
    """Run a net; returns its last layer, (rows, outputs), a view of `work`."""
    layers = table.shape[0]
    out = matrix(work, offsets[0], rows, table[0, 1])
    for layer in range(layers):
        inputs, outputs, w, b = table[layer, 0], table[layer, 1], table[layer, 2], table[layer, 3]
        weight = matrix(theta, w, inputs, outputs)
        here = matrix(work, offsets[layer], rows, outputs)
        if layer == 0:
            first_layer(indices, floats, one_hot, weight, here)
        else:
            np.dot(out, weight, here)
        activate(here, theta[b : b + outputs], activation if layer < layers - 1 else LINEAR)
        out = here
    return out


@kernel
def forward_both(
    theta: FloatArray,
    pi: Array,
    pi_offsets: Array,
    pi_work: FloatArray,
    vf: Array,
    vf_offsets: Array,
    vf_work: FloatArray,
    indices: Array,
    floats: FloatArray,
    one_hot: bool,
    rows: int,
    activation: int,
) -> tuple[FloatArray, FloatArray]:
    """Run `forward` of actor and critic in one call: for few rows a call from Python costs as much as the network."""
    return (
        forward(theta, pi, pi_offsets, pi_work, indices, floats, one_hot, rows, activation),
        forward(theta, vf, vf_offsets, vf_work, indices, floats, one_hot, rows, activation),
    )


@inner_kernel
def _first_layer_gradient(
    indices: Array, floats: FloatArray, one_hot: bool, delta: FloatArray, grad: FloatArray
) -> None:
    """grad: (inputs, outputs) = inputs.T @ delta."""
    if not one_hot:
        np.dot(floats.T, delta, grad)
        return
    for i in range(grad.shape[0]):
        clear(grad[i])
    rows, outputs = delta.shape
    for i in range(rows):
        row = delta[i]
        for k in range(indices.shape[1]):
            target = grad[indices[i, k]]
            for j in range(outputs):
                target[j] += row[j]


@inner_kernel
def backward(
    theta: FloatArray,
    grad: FloatArray,
    table: Array,
    offsets: Array,
    work: FloatArray,
    delta_work: FloatArray,
    indices: Array,
    floats: FloatArray,
    one_hot: bool,
    rows: int,
    activation: int,
) -> None:
    """Compute the gradients of a net's parameters from those of its outputs.

    `delta_work` has the layout of `work`. On entry its last layer holds the loss's gradient with respect to the net's
    outputs; on return `grad` holds the gradient with respect to the parameters.
    """
    layers = table.shape[0]
    for layer in range(layers - 1, -1, -1):
        inputs, outputs, w, b = table[layer, 0], table[layer, 1], table[layer, 2], table[layer, 3]
        delta = matrix(delta_work, offsets[layer], rows, outputs)
        values = matrix(work, offsets[layer], rows, outputs)
        through_activation(delta, values, activation if layer < layers - 1 else LINEAR, grad[b : b + outputs])
        weight_grad = matrix(grad, w, inputs, outputs)
        if layer == 0:
            _first_layer_gradient(indices, floats, one_hot, delta, weight_grad)
            continue
        below = matrix(work, offsets[layer - 1], rows, inputs)
        np.dot(below.T, delta, weight_grad)
        weight = matrix(theta, w, inputs, outputs)
        delta_below = matrix(delta_work, offsets[layer - 1], rows, inputs)
        np.dot(delta, weight.T, delta_below)


@inner_kernel
def _forbid(logits: FloatArray, allowed: FloatArray) -> None:
    """Set the logits of forbidden actions, in place."""
    for i in range(logits.shape[0]):
        for j in range(allowed.shape[1]):
            if allowed[i, j] == _ZERO:
                logits[i, j] = _FORBIDDEN


@inner_kernel
def softmax(logits: FloatArray, probabilities: FloatArray, sizes: Array) -> None:
    """Compute the softmax of each sub-distribution.

    Args:
        logits: (rows, sum of sizes); changed to log-probabilities.
        probabilities: the same shape; filled.
        sizes: sizes of the sub-distributions.
    """
    for i in range(logits.shape[0]):
        start = 0
        for k in range(sizes.shape[0]):
            end = start + sizes[k]
            highest = logits[i, start]
            for j in range(start + 1, end):
                highest = max(highest, logits[i, j])
            total = _ZERO
            for j in range(start, end):
                logits[i, j] -= highest
                probabilities[i, j] = np.exp(logits[i, j])
                total += probabilities[i, j]
            shift, inverse = np.log(total), _ONE / total
            for j in range(start, end):
                logits[i, j] -= shift
                probabilities[i, j] *= inverse
            start = end


@inner_kernel
def _categorical_log_prob(log_probs: FloatArray, sizes: Array, actions: Array, row: int) -> _Scalar:
    """log_probs: (rows, sum of sizes); the log-probability of one row's actions."""
    start, total = 0, _ZERO
    for k in range(sizes.shape[0]):
        total += log_probs[row, start + actions[row, k]]
        start += sizes[k]
    return total


@inner_kernel
def _gaussian_log_prob(means: FloatArray, log_std: FloatArray, actions: Array, row: int) -> _Scalar:
    total = _ZERO
    for d in range(means.shape[1]):
        z = (actions[row, d] - means[row, d]) * np.exp(-log_std[d])
        total -= _HALF * z * z + log_std[d] + _HALF_LOG_TWO_PI
    return total


@inner_kernel
def _categorical_delta(
    log_probs: FloatArray,
    sizes: Array,
    actions: Array,
    row: int,
    by_log_prob: _Scalar,
    by_entropy: _Scalar,
    delta: FloatArray,
) -> _Scalar:
    """Write the gradient of one row's logits into `delta`, which holds the probabilities; returns the entropy."""
    start, total = 0, _ZERO
    for k in range(sizes.shape[0]):
        end, chosen = start + sizes[k], start + actions[row, k]
        entropy = _ZERO
        for j in range(start, end):
            entropy -= delta[row, j] * log_probs[row, j]
        for j in range(start, end):
            p = delta[row, j]
            taken = _ONE if j == chosen else _ZERO
            delta[row, j] = by_log_prob * (taken - p) - by_entropy * p * (log_probs[row, j] + entropy)
        total += entropy
        start = end
    return total


@inner_kernel
def _gaussian_delta(
    means: FloatArray,
    log_std: FloatArray,
    actions: Array,
    row: int,
    by_log_prob: _Scalar,
    by_entropy: _Scalar,
    delta: FloatArray,
    log_std_grad: FloatArray,
) -> _Scalar:
    """Write the gradient of one row's means into `delta`, and add up that of log_std; returns the row's entropy."""
    total = _ZERO
    for d in range(means.shape[1]):
        inverse = np.exp(-log_std[d])
        z = (actions[row, d] - means[row, d]) * inverse
        delta[row, d] = by_log_prob * z * inverse
        log_std_grad[d] += by_log_prob * (z * z - _ONE) + by_entropy
        total += _HALF + _HALF_LOG_TWO_PI + log_std[d]
    return total


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


@kernel
def workspace(table: Array, rows: int) -> tuple[Array, int]:
    """Return the offset of each layer's activations, and the size of the workspace in numbers."""
    offsets = np.empty(table.shape[0], np.int64)
    size = 0
    for layer in range(table.shape[0]):
        offsets[layer] = size
        size += rows * table[layer, 1]
    return offsets, size


@kernel
def sample(logits: FloatArray, allowed: FloatArray, sizes: Array, noise: FloatArray) -> tuple[Array, FloatArray]:
    """Draw from categorical distributions.

    Args:
        logits: (rows, sum of sizes); changed to log-probabilities.
        allowed: action masks, see `Samples`; no columns: all actions are allowed.
        sizes: sizes of the sub-distributions.
        noise: (rows, sum of sizes) exponentially distributed numbers.

    Returns:
        Actions (rows, sub-distributions) int64 and their log-probabilities (rows,).
    """
    rows = logits.shape[0]
    _forbid(logits, allowed)
    probabilities = np.empty_like(logits)
    softmax(logits, probabilities, sizes)
    actions = np.empty((rows, sizes.shape[0]), np.int64)
    log_probs = np.zeros(rows, np.float32)
    for i in range(rows):
        start = 0
        for k in range(sizes.shape[0]):
            best, best_value = 0, -_ONE
            for j in range(sizes[k]):
                value = probabilities[i, start + j] / noise[i, start + j]
                if value > best_value:
                    best, best_value = j, value
            actions[i, k] = best
            log_probs[i] += logits[i, start + best]
            start += sizes[k]
    return actions, log_probs


@inner_kernel
def _gather(samples: Samples, order: Array, batch: Samples) -> None:
    """Copy the samples of a minibatch to the front of the arrays of `batch`."""
    _gather_rows(samples.indices, order, batch.indices)
    _gather_rows(samples.floats, order, batch.floats)
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
            log_prob = _gaussian_log_prob(pi_out, log_std, float_actions, i)
        else:
            log_prob = _categorical_log_prob(pi_out, sizes, int_actions, i)
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
            entropy += _gaussian_delta(
                pi_out, log_std, float_actions, i, by_log_prob, by_entropy, pi_delta, log_std_grad
            )
        else:
            entropy += _categorical_delta(pi_out, sizes, int_actions, i, by_log_prob, by_entropy, pi_delta)
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
        _forbid(pi_out, batch.allowed)
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
            _gather(samples, order, batch)
            if settings.normalize_advantage and rows > 1:
                _normalise(batch.advantages[:rows])
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
