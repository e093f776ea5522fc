"""Observations and rewards normalised as in `marl_sb3.core.processing`, with its bits: NumPy's sums, in NumPy's order.

Running statistics of n numbers are a float64 array: n means, n variances, and how many have come in. Compiled rollouts
call `process` by its address, so that it is compiled only where something is normalised.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_sb3.compiling import c_function, carray, pointer, record, strict_kernel
from marl_sb3.extensions.fast.kernels.layers import vector_at
from marl_sb3.types import Array, FloatArray

# What is processed for the rows of a policy. Names in -at are addresses, 0 where there is nothing.
PROCESSING = record(
    "rows",
    "observed_at",  # (agents of all envs, width) float32: what they observe
    "width",
    "places_at",  # (rows,) int64: the agents among those of all envs
    "numbers",  # that one of them observes
    "seen_statistics_at",  # of their observations
    "seen_recent_at",  # of those of the round
    "divisors_at",  # (numbers,) float64: standard deviations
    "paid_statistics_at",  # of the discounted returns of their running episodes
    "paid_recent_at",
    "returns_at",  # (rows,) float64
    "rewards_at",  # (rows,) float32
    "ended_at",  # (rows,) bool
    floats=("epsilon", "clip_paid", "clip_normal", "discount"),
)

_BLOCK = 128  # numbers that NumPy adds up without dividing them into halves
_f = np.float32


@strict_kernel
def doubles_at(address: int, size: int) -> Any:
    """Return the (size,) float64 numbers from an address on; a view."""
    return carray(pointer(address), (size,), np.float64)


@strict_kernel
def _take_in(statistics: int, recent: int, mean: Array, share: Array, rows: int) -> None:
    """Take the moments of some rows into running statistics, as SB3's `RunningMeanStd.update_from_moments`.

    Args:
        statistics: their address.
        recent: the address of those of the round; 0: there are none.
        mean: (n,) float64.
        share: (n,) float64; the variances times the number of rows.
    """
    n = mean.shape[0]
    for k in range(2 if recent else 1):
        own = doubles_at(recent if k else statistics, 2 * n + 1)
        count = own[2 * n]
        total = count + rows
        for j in range(n):
            delta = mean[j] - own[j]
            own[j] += delta * rows / total
            own[n + j] = (own[n + j] * count + share[j] + delta * delta * count * rows / total) / total
        own[2 * n] = rows + count


@strict_kernel
def _take_in_rows(statistics: int, recent: int, seen: FloatArray) -> None:
    """Take (rows, n) float32 observations, n > 1, into running statistics; NumPy adds up such rows one by one."""
    rows, n = seen.shape
    mean, share = np.empty(n), np.empty(n)
    sums, means = np.zeros(n, np.float32), np.empty(n, np.float32)
    for i in range(rows):
        for j in range(n):
            sums[j] += seen[i, j]
    for j in range(n):
        means[j], sums[j] = sums[j] / rows, _f(0.0)
        mean[j] = means[j]
    for i in range(rows):
        for j in range(n):
            off = seen[i, j] - means[j]
            sums[j] += off * off
    for j in range(n):
        share[j] = _f(_f(sums[j] / rows) * _f(rows))
    _take_in(statistics, recent, mean, share, rows)


@strict_kernel
def sum_of(values: Array) -> float:
    """Return the sum of (n,) float64 numbers as NumPy adds them up: halves of halves, down to blocks, in 8 columns."""
    left, right, is_left = np.empty(64), np.empty(64, np.int64), np.empty(64, np.bool_)
    start, size, depth = 0, values.shape[0], 0
    columns = np.empty(8)
    while True:
        while size > _BLOCK:
            half = size // 2
            half -= half % 8
            right[depth], is_left[depth] = size - half, True
            depth, size = depth + 1, half
        total = 0.0
        whole = size - size % 8
        if whole > 0:
            for k in range(8):
                columns[k] = values[start + k]
            for i in range(8, whole, 8):
                for k in range(8):
                    columns[k] += values[start + i + k]
            for half in (4, 2, 1):
                for k in range(half):
                    columns[k] = columns[2 * k] + columns[2 * k + 1]
            total = columns[0]
        for i in range(whole, size):
            total += values[start + i]
        start += size
        while depth > 0 and not is_left[depth - 1]:
            depth -= 1
            total = left[depth] + total
        if depth == 0:
            return total
        left[depth - 1], is_left[depth - 1], size = total, False, right[depth - 1]


@strict_kernel
def _take_in_numbers(statistics: int, recent: int, values: Array) -> None:
    """Take (n,) float64 numbers into running statistics of one."""
    n = values.shape[0]
    mean, share, off = np.empty(1), np.empty(1), np.empty(n)
    mean[0] = sum_of(values) / n
    for i in range(n):
        off[i] = (values[i] - mean[0]) * (values[i] - mean[0])
    share[0] = sum_of(off) / n * n
    _take_in(statistics, recent, mean, share, n)


@strict_kernel
def _process_observations(table: Any) -> None:
    """Take in what the rows observe after a step."""
    rows, n, width = table.rows, table.numbers, table.width
    places, seen = carray(pointer(table.places_at), (rows,), np.int64), np.empty((rows, n), np.float32)
    for row in range(rows):
        observed = vector_at(table.observed_at + 4 * width * places[row], n)
        for j in range(n):
            seen[row, j] = observed[j]
    _take_in_rows(table.seen_statistics_at, table.seen_recent_at, seen)
    own, divisors = doubles_at(table.seen_statistics_at, 2 * n), doubles_at(table.divisors_at, n)
    for j in range(n):
        divisors[j] = np.sqrt(own[n + j] + table.epsilon)


@strict_kernel
def _process_rewards(table: Any) -> None:
    """Clip rewards, and divide them by the standard deviation of discounted returns, which take them in first."""
    rows, limit = table.rows, _f(table.clip_paid)
    rewards, ended = vector_at(table.rewards_at, rows), carray(pointer(table.ended_at), (rows,), np.bool_)
    for row in range(rows):
        rewards[row] = min(limit, max(-limit, rewards[row]))
    if table.paid_statistics_at == 0:
        return
    returns = doubles_at(table.returns_at, rows)
    for row in range(rows):
        returns[row] = returns[row] * table.discount + rewards[row]
    _take_in_numbers(table.paid_statistics_at, table.paid_recent_at, returns)
    divisor = np.sqrt(doubles_at(table.paid_statistics_at, 3)[1] + table.epsilon)
    for row in range(rows):
        rewards[row] = min(table.clip_normal, max(-table.clip_normal, rewards[row] / divisor))
        if ended[row]:
            returns[row] = 0.0


def _process(address: int) -> None:
    table = carray(pointer(address), (1,), PROCESSING)[0]
    if table.seen_statistics_at != 0:
        _process_observations(table)
    _process_rewards(table)


def process() -> Any:
    """Return the C function `void(address of a record)` that processes a step of the rows of a policy."""
    return c_function(_process, what="the normalisation in rollouts: about 2 s of one core")
