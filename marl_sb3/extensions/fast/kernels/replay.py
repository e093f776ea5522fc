"""What the updates of algorithms with a replay buffer share, as kernels: minibatches, quantile losses and critics."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel
from marl_sb3.extensions.fast.kernels.layers import LINEAR
from marl_sb3.extensions.fast.kernels.mlp import (
    Net,
    backward,
    forward,
    last_layer,
    outputs_size,
    parameters_size,
    plain,
)
from marl_sb3.types import Array, FloatArray

_Scalar = Any  # a float, once compiled

_f = np.float32
_ZERO, _HALF, _ONE = _f(0.0), _f(0.5), _f(1.0)


class Batch(NamedTuple):
    """A minibatch."""

    observations: FloatArray  # (rows, inputs) float32
    actions: Array  # (rows, n); float32, for DQN and QR-DQN int64
    next_observations: FloatArray  # (rows, inputs) float32
    rewards: FloatArray  # (rows,) float32
    # (rows,) float32; what the value of the next observation counts: 0 where the episode was terminated
    discounts: FloatArray


@inner_kernel
def quantile_loss(current: FloatArray, targets: FloatArray, scale: float, delta: FloatArray) -> _Scalar:
    """Compute the quantile Huber loss of one row (Dabney et al. 2018, eq. 10), summed over all pairs.

    Args:
        current: (quantiles,); the estimates.
        targets: (target quantiles,).
        scale: multiplies the gradient.
        delta: (quantiles,); filled with the gradient.

    Returns:
        The sum, not scaled.
    """
    quantiles, total, factor = current.shape[0], np.float64(0.0), _f(scale)
    for i in range(quantiles):
        level, slope, loss = _f((i + 0.5) / quantiles), _ZERO, _ZERO
        for j in range(targets.shape[0]):
            error = targets[j] - current[i]
            size = abs(error)
            weight = abs(level - (_ONE if error < _ZERO else _ZERO))
            small = size <= _ONE
            loss += weight * (_HALF * error * error if small else size - _HALF)
            slope -= weight * (error if small else (_ONE if error > _ZERO else -_ONE))
        delta[i] = slope * factor
        total += loss
    return total


# --- Critics ---------------------------------------------------------------------------------------------------------


class Critics(NamedTuple):
    """The critics of SAC, TQC or TD3, which value observations and actions together; all of the same shape."""

    tables: Array  # (critics, layers, 4) int64; see `Net`
    hidden: int  # activation of the hidden layers


@inner_kernel
def critic(critics: Critics, k: int) -> Net:
    """Return the k-th critic."""
    return Net(critics.tables[k], critics.hidden, LINEAR)


@inner_kernel
def joined(observations: FloatArray, actions: FloatArray) -> FloatArray:
    """Return the critics' inputs, (rows, inputs + n)."""
    rows, columns, more = observations.shape[0], observations.shape[1], actions.shape[1]
    made = np.empty((rows, columns + more), np.float32)
    for i in range(rows):
        for j in range(columns):
            made[i, j] = observations[i, j]
        for j in range(more):
            made[i, columns + j] = actions[i, j]
    return made


@inner_kernel
def works(critics: Critics, rows: int) -> FloatArray:
    """Return a workspace for each critic, (critics, n)."""
    return np.empty((critics.tables.shape[0], rows * outputs_size(critic(critics, 0))), np.float32)


@inner_kernel
def values(critics: Critics, inputs: FloatArray, work: FloatArray) -> FloatArray:
    """Run all critics.

    Args:
        inputs: (rows, inputs + n).
        work: of `works`.

    Returns:
        (critics, rows, outputs).
    """
    count, rows = critics.tables.shape[0], inputs.shape[0]
    outputs = critics.tables[0, critics.tables.shape[1] - 1, 1]
    found = np.empty((count, rows, outputs), np.float32)
    for k in range(count):
        of_one = forward(critic(critics, k), plain(inputs), work[k])
        for i in range(rows):
            for j in range(outputs):
                found[k, i, j] = of_one[i, j]
    return found


@inner_kernel
def gradients(critics: Critics, inputs: FloatArray, work: FloatArray, slopes: FloatArray) -> FloatArray:
    """Return the gradients of the parameters of all critics, (parameters,).

    Args:
        work: filled by `values`.
        slopes: (critics, rows, outputs) gradients of the values.
    """
    count, rows = critics.tables.shape[0], inputs.shape[0]
    size = parameters_size(critic(critics, 0))
    grad, none = np.empty(count * size, np.float32), np.empty((0, 0), np.float32)
    deltas = np.empty_like(work[0])
    for k in range(count):
        net = critic(critics, k)
        _put(slopes[k], last_layer(net, deltas, rows))
        backward(net, plain(inputs), work[k], deltas, grad[k * size : (k + 1) * size], none)
    return grad


@inner_kernel
def action_gradients(
    critics: Critics, inputs: FloatArray, work: FloatArray, slopes: FloatArray, actions: int
) -> FloatArray:
    """Return the gradients of the last `actions` inputs, (rows, actions), summed over critics.

    Args:
        work: filled by `values`.
        slopes: (n, rows, outputs) gradients of the values of the first n critics.
    """
    rows, columns = inputs.shape
    found = np.zeros((rows, actions), np.float32)
    deltas, below, none = np.empty_like(work[0]), np.empty_like(inputs), np.empty(0, np.float32)
    for k in range(slopes.shape[0]):
        net = critic(critics, k)
        _put(slopes[k], last_layer(net, deltas, rows))
        backward(net, plain(inputs), work[k], deltas, none, below)
        for i in range(rows):
            for j in range(actions):
                found[i, j] += below[i, columns - actions + j]
    return found


@inner_kernel
def _put(slopes: FloatArray, delta: FloatArray) -> None:
    for i in range(slopes.shape[0]):
        for j in range(slopes.shape[1]):
            delta[i, j] = slopes[i, j]


@inner_kernel
def lowest(found: FloatArray) -> tuple[FloatArray, Array]:
    """Return the lowest value of all critics, (rows,), and which critic's it is; found: (critics, rows, 1)."""
    count, rows = found.shape[0], found.shape[1]
    least, whose = np.empty(rows, np.float32), np.zeros(rows, np.int64)
    for i in range(rows):
        least[i] = found[0, i, 0]
        for k in range(1, count):
            if found[k, i, 0] < least[i]:
                least[i], whose[i] = found[k, i, 0], k
    return least, whose


@inner_kernel
def squared_errors(found: FloatArray, targets: FloatArray, scale: float, slopes: FloatArray) -> _Scalar:
    """Return the sum of the critics' mean squared errors; `slopes` is filled with `scale` times its gradients.

    Args:
        found: (critics, rows, 1).
        targets: (rows,).
        slopes: (critics, rows, 1).
    """
    count, rows = found.shape[0], found.shape[1]
    total, factor = np.float64(0.0), np.float32(2.0 * scale / rows)
    for k in range(count):
        for i in range(rows):
            error = found[k, i, 0] - targets[i]
            total += error * error
            slopes[k, i, 0] = factor * error
    return total / rows
