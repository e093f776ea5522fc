"""The samples of a rollout and minibatches of them, as kernels compiled by numba."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from marl_sb3.kernels.cache import inner_kernel
from marl_sb3.types import Array, FloatArray

_f = np.float32
_ONE = _f(1.0)
_ADV_EPS = _f(1e-8)


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


@inner_kernel
def gather(samples: Samples, order: Array, batch: Samples) -> None:
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
def normalise(advantages: FloatArray) -> None:
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
