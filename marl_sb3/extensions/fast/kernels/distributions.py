"""Distributions of actions: log-probabilities, entropies, their gradients, and drawing, as float32 kernels.

The logit of a forbidden action is -1e8, as in sb3-contrib's `MaskableCategorical`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel
from marl_sb3.types import Array, FloatArray

_f = np.float32
_ZERO, _HALF, _ONE = _f(0.0), _f(0.5), _f(1.0)
_HALF_LOG_TWO_PI = _f(0.5 * math.log(2.0 * math.pi))
_FORBIDDEN = _f(-1e8)  # sb3-contrib's HUGE_NEG
_Scalar = Any  # a float32, once compiled


@inner_kernel
def forbid(logits: FloatArray, allowed: FloatArray) -> None:
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
def categorical_log_prob(log_probs: FloatArray, sizes: Array, actions: Array, row: int) -> _Scalar:
    """log_probs: (rows, sum of sizes); the log-probability of one row's actions."""
    start, total = 0, _ZERO
    for k in range(sizes.shape[0]):
        total += log_probs[row, start + actions[row, k]]
        start += sizes[k]
    return total


@inner_kernel
def gaussian_log_prob(means: FloatArray, log_std: FloatArray, actions: Array, row: int) -> _Scalar:
    """means: (rows, n); the log-probability of one row's actions."""
    total = _ZERO
    for d in range(means.shape[1]):
        z = (actions[row, d] - means[row, d]) * np.exp(-log_std[d])
        total -= _HALF * z * z + log_std[d] + _HALF_LOG_TWO_PI
    return total


@inner_kernel
def categorical_delta(
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
def gaussian_delta(
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
    forbid(logits, allowed)
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
