"""Observations as policies see them: normalised, stacked, with numbers appended, as `marl_sb3.core.processing` does it.

Compiled rollouts call `features` by its address, so that it is compiled only where policies do not see observations as
the env shows them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_sb3.compiling import c_function, carray, pointer, strict_kernel
from marl_sb3.extensions.fast.kernels.layers import vector_at
from marl_sb3.extensions.fast.kernels.processing import doubles_at
from marl_sb3.types import Array, FloatArray

# The table of a policy's rows. Names in -S are addresses, 0 where there is nothing; the arrays are beside them.
(
    ASKED_S,  # (ASKED,) int64: rows; these two, OBSERVED_S, SEEN_S and ACT are of a call
    ASKED,
    OBSERVED_S,  # (agents of all envs, WIDTH) float32 or int64: what they observe
    SEEN_S,  # (ASKED, SEEN_NUMBERS) float32 or int64: what their policy sees; written
    ACT,  # whether the rows act on it; if not, their episodes have ended on it, and they forget it before they act
    ROWS,
    WIDTH,
    PLACES_S,  # (ROWS,) int64: the agents among those of all envs
    NUMBERS,  # that one of them observes
    CHOICES_S,  # (NUMBERS,) int64: how many categories each of them has; 0: they are real numbers
    ARE_ONES,  # whether categories become one-hot numbers
    MEANS_S,  # (NUMBERS,) float64: of real numbers; 0: they are not normalised
    DIVISORS_S,  # (NUMBERS,) float64: their standard deviations
    LIMIT_S,  # (1,) float64: of normalised numbers
    FRAMES,
    STACK_S,  # (ROWS, FRAMES * NUMBERS) float32 or int64: the latest frames of the rows, the newest last
    TIMES_S,  # (ROWS,) int64: actions in the running episode
    TIME,  # number of actions in which the time goes from 1 to 0; 0: it is not appended
    CODES_S,  # (ROWS,) int64: the agents among those of the policy
    CODES,  # how many they are; 0: they are not appended
    STARTS_S,  # (ROWS,) bool: where an episode begins with the next action
    SEEN_NUMBERS,
    FIELDS,
) = range(23)

_f = np.float32


@strict_kernel
def _ints_at(address: int, size: int) -> Any:
    return carray(pointer(address), (size,), np.int64)


@strict_kernel
def _see_numbers(table: Array, row: int, frames: FloatArray) -> None:
    """Write the frames of a row, the older ones first; NaN for numbers that are not finite."""
    n, older = table[NUMBERS], table[NUMBERS] * (table[FRAMES] - 1)
    stack = vector_at(table[STACK_S] + 4 * (older + n) * row, older + n)
    observed = vector_at(table[OBSERVED_S] + 4 * table[WIDTH] * _ints_at(table[PLACES_S], row + 1)[row], n)
    means, divisors = doubles_at(table[MEANS_S], n), doubles_at(table[DIVISORS_S], n)
    limit = doubles_at(table[LIMIT_S], 1)[0]
    for j in range(older):
        frames[j] = stack[n + j]
    for j in range(n):
        number = observed[j]
        if not np.isfinite(number):
            number = _f(np.nan)
        elif table[MEANS_S]:
            number = _f(min(limit, max(-limit, (number - means[j]) / divisors[j])))
        frames[older + j] = number
    for j in range(older + n):
        stack[j] = frames[j]


@strict_kernel
def _see_categories(table: Array, row: int, frames: Array) -> None:
    """Write the frames of a row, as `_see_numbers`; -1 for what is no category."""
    n, older = table[NUMBERS], table[NUMBERS] * (table[FRAMES] - 1)
    stack = _ints_at(table[STACK_S] + 8 * (older + n) * row, older + n)
    observed = _ints_at(table[OBSERVED_S] + 8 * table[WIDTH] * _ints_at(table[PLACES_S], row + 1)[row], n)
    choices = _ints_at(table[CHOICES_S], n)
    for j in range(older):
        frames[j] = stack[n + j]
    for j in range(n):
        frames[older + j] = observed[j] if 0 <= observed[j] < choices[j] else -1
    for j in range(older + n):
        stack[j] = frames[j]


@strict_kernel
def _write_ones(table: Array, frames: Array, seen: FloatArray) -> int:
    """Write categories one-hot, and only NaN for a number that is no category; returns where they end.

    With stacked frames there is one more category: the frame is from before the episode.
    """
    n, more, at = table[NUMBERS], 1 if table[FRAMES] > 1 else 0, 0
    choices = _ints_at(table[CHOICES_S], n)
    for j in range(frames.shape[0]):
        size = choices[j % n] + more
        for k in range(size):
            seen[at + k] = _f(np.nan) if frames[j] < 0 else _f(1.0 if frames[j] == k else 0.0)
        at += size
    return at


@strict_kernel
def _append(table: Array, row: int, seen: FloatArray, at: int) -> None:
    """Write the time, then the agent one-hot."""
    if table[TIME]:
        times = _ints_at(table[TIMES_S], row + 1)
        seen[at] = max(1 - times[row] / table[TIME], 0.0)
        at += 1
    if table[CODES]:
        code = _ints_at(table[CODES_S], row + 1)[row]
        for k in range(table[CODES]):
            seen[at + k] = _f(1.0 if code == k else 0.0)


@strict_kernel
def _forget(table: Array, row: int) -> None:
    """Begin an episode of a row: frames before the first one are zeros, or categories that no observation has."""
    n, size = table[NUMBERS], table[NUMBERS] * table[FRAMES]
    if table[CHOICES_S]:
        stack, choices = _ints_at(table[STACK_S] + 8 * size * row, size), _ints_at(table[CHOICES_S], n)
        for j in range(size):
            stack[j] = choices[j % n]
    else:
        floats = vector_at(table[STACK_S] + 4 * size * row, size)
        for j in range(size):
            floats[j] = _f(0.0)
    _ints_at(table[TIMES_S], row + 1)[row] = 0


def _features(address: int) -> None:
    table = _ints_at(address, FIELDS)
    asked, wide, size = _ints_at(table[ASKED_S], table[ASKED]), table[SEEN_NUMBERS], table[NUMBERS] * table[FRAMES]
    starts = carray(pointer(table[STARTS_S]), (table[ROWS],), np.bool_)
    times = _ints_at(table[TIMES_S], table[ROWS])
    for k in range(asked.shape[0]):
        row = asked[k]
        if table[ACT] and starts[row]:
            _forget(table, row)
        if table[CHOICES_S] and not table[ARE_ONES]:
            _see_categories(table, row, _ints_at(table[SEEN_S] + 8 * wide * k, wide))
        else:
            seen, at = vector_at(table[SEEN_S] + 4 * wide * k, wide), size
            if table[CHOICES_S]:
                frames = np.empty(size, np.int64)
                _see_categories(table, row, frames)
                at = _write_ones(table, frames, seen)
            else:
                _see_numbers(table, row, seen)
            _append(table, row, seen, at)
        times[row] += 1


def features() -> Any:
    """Return the C function `void(address of a table)` that writes what a policy sees."""
    return c_function(_features, what="the processing of observations in rollouts: about 2 s of one core")
