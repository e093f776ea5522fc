"""A minibatch from a replay buffer, and the losses that several algorithms share, as kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_sb3.kernels.cache import inner_kernel
from marl_sb3.types import Array, FloatArray

_Scalar = Any  # a float, once compiled

_f = np.float32
_ZERO, _HALF, _ONE = _f(0.0), _f(0.5), _f(1.0)


class Batch(NamedTuple):
    """A minibatch.

    Attributes:
        observations: (rows, inputs) float32.
        actions: (rows, n); float32, for DQN and QR-DQN int64.
        next_observations: (rows, inputs) float32.
        rewards: (rows,) float32.
        discounts: (rows,) float32; what the value of the next observation counts: 0 where the episode was terminated.
    """

    observations: FloatArray
    actions: Array
    next_observations: FloatArray
    rewards: FloatArray
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


@inner_kernel
def join(left: FloatArray, right: FloatArray, joined: FloatArray) -> None:
    """joined: (rows, m + n); filled with the columns of (rows, m) and (rows, n)."""
    columns, more = left.shape[1], right.shape[1]
    for i in range(joined.shape[0]):
        for j in range(columns):
            joined[i, j] = left[i, j]
        for j in range(more):
            joined[i, columns + j] = right[i, j]
