"""Distributions of actions: log-probabilities, entropies, their gradients, and drawing, as float32 kernels.

The logit of a forbidden action is -1e8, as in sb3-contrib's `MaskableCategorical`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marl_sb3.compiling import inner_kernel, kernel, strict_entry
from marl_sb3.extensions.fast.kernels.layers import clear, exp
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
def gaussian_log_prob(means: FloatArray, log_std: FloatArray, actions: Array, row: int) -> _Scalar:
    """means: (rows, n); the log-probability of one row's actions."""
    total = _ZERO
    for d in range(means.shape[1]):
        z = (actions[row, d] - means[row, d]) * np.exp(-log_std[d])
        total -= _HALF * z * z + log_std[d] + _HALF_LOG_TWO_PI
    return total


# In updates the numbers of one category, for all rows, lie side by side: these loops run over rows, in vectors, which
# the few categories of a row would not fill.


@inner_kernel
def turned(source: FloatArray, target: FloatArray) -> None:
    """Copy (rows, n) to (n, rows), or back."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[j, i] = source[i, j]


@inner_kernel
def softmax_of_columns(logits: FloatArray, probabilities: FloatArray, sizes: Array) -> None:
    """Compute the softmax of each sub-distribution, as `softmax`, from (sum of sizes, rows)."""
    rows, start = logits.shape[1], 0
    highest, total = np.empty(rows, np.float32), np.empty(rows, np.float32)
    for k in range(sizes.shape[0]):
        end = start + sizes[k]
        for i in range(rows):
            highest[i] = logits[start, i]
            total[i] = _ZERO
        for j in range(start + 1, end):
            row = logits[j]
            for i in range(rows):
                highest[i] = row[i] if row[i] > highest[i] else highest[i]
        for j in range(start, end):
            row, of_row = logits[j], probabilities[j]
            for i in range(rows):
                row[i] -= highest[i]
                of_row[i] = exp(row[i])
                total[i] += of_row[i]
        for i in range(rows):
            highest[i] = np.log(total[i])
            total[i] = _ONE / total[i]
        for j in range(start, end):
            row, of_row = logits[j], probabilities[j]
            for i in range(rows):
                row[i] -= highest[i]
                of_row[i] *= total[i]
        start = end


@inner_kernel
def categorical_log_probs(logits: FloatArray, sizes: Array, actions: Array, log_probs: FloatArray) -> None:
    """logits: (sum of sizes, rows) log-probabilities; log_probs: (rows,), filled with those of the rows' actions."""
    clear(log_probs)
    start = 0
    for k in range(sizes.shape[0]):
        for i in range(log_probs.shape[0]):
            log_probs[i] += logits[start + actions[i, k], i]
        start += sizes[k]


@inner_kernel
def categorical_deltas(
    logits: FloatArray, sizes: Array, actions: Array, by_log_prob: FloatArray, by_entropy: _Scalar, delta: FloatArray
) -> float:
    """Compute the gradients of logits.

    Args:
        logits: (sum of sizes, rows) log-probabilities.
        actions: (rows, sub-distributions).
        by_log_prob: (rows,) gradients of the log-probabilities of the actions.
        by_entropy: the gradient of the sum of entropies.
        delta: (sum of sizes, rows) probabilities; changed to the gradients.

    Returns:
        The sum of the rows' entropies.
    """
    rows, start, total = by_log_prob.shape[0], 0, np.float64(0.0)
    entropy, chosen = np.empty(rows, np.float32), np.empty(rows, np.float32)
    for k in range(sizes.shape[0]):
        for i in range(rows):
            entropy[i] = _ZERO
            chosen[i] = _f(actions[i, k])
        for j in range(start, start + sizes[k]):
            row, of_row = logits[j], delta[j]
            for i in range(rows):
                entropy[i] -= of_row[i] * row[i]
        for j in range(start, start + sizes[k]):
            row, of_row, number = logits[j], delta[j], _f(j - start)
            for i in range(rows):
                taken = _ONE if chosen[i] == number else _ZERO
                p = of_row[i]
                of_row[i] = by_log_prob[i] * (taken - p) - by_entropy * p * (row[i] + entropy[i])
        for i in range(rows):
            total += entropy[i]
        start += sizes[k]
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


@strict_entry
def sample_gaussian(
    means: FloatArray, log_std: FloatArray, std: FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Draw from Gaussians.

    Args:
        means: (rows, n).
        log_std: (n,) log standard deviations.
        std: (n,) standard deviations.
        noise: (rows, n) normally distributed numbers.

    Returns:
        Actions (rows, n) and their log-probabilities (rows,).
    """
    rows, n = means.shape
    actions, log_probs = np.empty((rows, n), np.float32), np.empty(rows, np.float32)
    shift = _ZERO
    for j in range(n):
        shift += log_std[j] + _HALF_LOG_TWO_PI
    for i in range(rows):
        squares = _ZERO
        for j in range(n):
            actions[i, j] = means[i, j] + std[j] * noise[i, j]
            # From the rounded actions, as in PyTorch and in the update: added to a mean of 1e4, noise loses digits.
            scaled = (actions[i, j] - means[i, j]) / std[j]
            squares += scaled * scaled
        log_probs[i] = -_HALF * squares - shift
    return actions, log_probs
