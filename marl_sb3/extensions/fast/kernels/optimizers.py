"""Adam and RMSprop on parameters in PyTorch's memory, as float32 kernels compiled by numba."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import inner_kernel
from marl_sb3.extensions.fast.kernels.layers import vector_at
from marl_sb3.types import Array, FloatArray

ADAM, RMSPROP, RMSPROP_TF = range(3)  # optimizers; the last one is SB3's `RMSpropTFLike`

_f = np.float32
_ONE = _f(1.0)
_CLIP_EPS = _f(1e-6)
_Scalar = Any  # a float32, once compiled


class Optimizer(NamedTuple):
    """An optimizer with its parameters, in the order of their gradients, its state and its settings."""

    # (parameters, 5) int64; number of values, and addresses of the values, of the first and the second moments and of
    # the number of steps taken. Only Adam needs first moments and the steps; the addresses are 0 where there are none.
    table: Array
    kind: int  # ADAM, RMSPROP or RMSPROP_TF
    learning_rate: float
    beta1: float  # of Adam
    beta2: float  # of Adam; the alpha of RMSprop
    eps: float


@inner_kernel
def sum_of_squares(grad: FloatArray) -> float:
    """Return the sum of the squares of gradients."""
    squares = np.float64(0.0)
    for i in range(grad.shape[0]):
        squares += np.float64(grad[i]) * np.float64(grad[i])
    return squares


@inner_kernel
def norm(grad: FloatArray) -> float:
    """Return the norm of all gradients."""
    return math.sqrt(sum_of_squares(grad))


@inner_kernel
def clipping(size: float, limit: float) -> float:
    """Return what gradients of the norm `size` are multiplied by, as in `torch.nn.utils.clip_grad_norm_`."""
    return float(min(_ONE, _f(limit) / (_f(size) + _CLIP_EPS)))


@inner_kernel
def take_step(optimizer: Optimizer, grad: FloatArray, scale: float) -> None:
    """Take one step of the optimizer with the gradients of all parameters, times `scale`."""
    step_between(optimizer, grad, scale, 0, grad.shape[0], 1)
    count_steps(optimizer, 1)


@inner_kernel
def count_steps(optimizer: Optimizer, number: int) -> None:
    """Count steps taken by `step_between`."""
    for i in range(optimizer.table.shape[0]):
        if optimizer.table[i, 4] != 0:
            vector_at(optimizer.table[i, 4], 1)[0] += _f(number)


@inner_kernel
def step_between(optimizer: Optimizer, grad: FloatArray, scale: float, begin: int, end: int, step: int) -> None:
    """Take a step of the optimizer for some of the parameters' values; the step is not counted.

    Args:
        grad: the gradients of all parameters.
        scale: what gradients are multiplied by.
        begin: place of the first value, among those of all parameters.
        end: place after the last one.
        step: number of this step, among those that are not counted yet, from 1.
    """
    place = 0
    for i in range(optimizer.table.shape[0]):
        size, address, first, second, count = optimizer.table[i]
        low, high = max(begin - place, 0), min(end - place, size)
        if low < high:
            part, skipped = high - low, 4 * low  # of float32
            values, of_values = vector_at(address + skipped, part), grad[place + low : place + high]
            squares = vector_at(second + skipped, part)
            if optimizer.kind == ADAM:
                number = int(vector_at(count, 1)[0]) + step
                _adam(values, of_values, vector_at(first + skipped, part), squares, _f(scale), number, optimizer)
            else:
                _rmsprop(values, of_values, squares, _f(scale), optimizer)
        place += size


@inner_kernel
def _adam(
    values: FloatArray,
    grad: FloatArray,
    m: FloatArray,
    v: FloatArray,
    scale: _Scalar,
    step: int,
    optimizer: Optimizer,
) -> None:
    """Adam (Kingma and Ba 2015), as in PyTorch's `_single_tensor_adam`; the first step is step 1."""
    beta1, beta2 = optimizer.beta1, optimizer.beta2
    step_size = _f(optimizer.learning_rate / (1.0 - beta1**step))
    inverse_root = _f(1.0 / math.sqrt(1.0 - beta2**step))
    keep1, new1, keep2, new2, small = _f(beta1), _f(1.0 - beta1), _f(beta2), _f(1.0 - beta2), _f(optimizer.eps)
    for i in range(values.shape[0]):
        g = grad[i] * scale
        first = keep1 * m[i] + new1 * g
        second = keep2 * v[i] + new2 * g * g
        m[i] = first
        v[i] = second
        values[i] -= step_size * first / (np.sqrt(second) * inverse_root + small)


@inner_kernel
def _rmsprop(values: FloatArray, grad: FloatArray, v: FloatArray, scale: _Scalar, optimizer: Optimizer) -> None:
    """RMSprop, as in PyTorch's `_single_tensor_rmsprop`; SB3's `RMSpropTFLike` adds epsilon before the root."""
    rate, keep, new, small = (
        _f(optimizer.learning_rate),
        _f(optimizer.beta2),
        _f(1.0 - optimizer.beta2),
        _f(optimizer.eps),
    )
    before_root = optimizer.kind == RMSPROP_TF
    for i in range(values.shape[0]):
        g = grad[i] * scale
        square = keep * v[i] + new * g * g
        v[i] = square
        root = np.sqrt(square + small) if before_root else np.sqrt(square) + small
        values[i] -= rate * g / root


@inner_kernel
def move_towards(table: Array, tau: float) -> None:
    """Move target parameters towards others: target = (1 - tau) * target + tau * source.

    Args:
        table: (parameters, 3) int64; number of values, address of the source, address of the target.
    """
    new, keep = _f(tau), _f(1.0 - tau)
    for i in range(table.shape[0]):
        size, source, target = table[i]
        to, given = vector_at(target, size), vector_at(source, size)
        for j in range(size):
            to[j] = keep * to[j] + new * given[j]
