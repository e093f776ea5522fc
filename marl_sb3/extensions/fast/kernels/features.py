"""Observations as policies see them: normalised, stacked, with numbers appended, as `marl_sb3.core.processing` does it.

Compiled rollouts call `features` by its address, so that it is compiled only where policies do not see observations as
the env shows them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_sb3.compiling import c_function, carray, pointer, record, strict_kernel
from marl_sb3.extensions.fast.kernels.layers import vector_at
from marl_sb3.extensions.fast.kernels.processing import doubles_at
from marl_sb3.types import Array, FloatArray

# What the rows of a policy see. Names in -at are addresses, 0 where there is nothing.
FEATURES = record(
    "asked_at",  # (asked,) int64: rows; these two, observed_at, seen_at and act are of a call
    "asked",
    "observed_at",  # (agents of all envs, width) float32 or int64: what they observe
    "seen_at",  # (asked, seen_numbers) float32 or int64: what their policy sees; written
    "act",  # whether the rows act on it; if not, their episodes have ended on it, and they forget it before they act
    "rows",
    "width",
    "places_at",  # (rows,) int64: the agents among those of all envs
    "numbers",  # that one of them observes
    "choices_at",  # (numbers,) int64: how many categories each of them has; 0: they are real numbers
    "are_ones",  # whether categories become one-hot numbers
    "means_at",  # (numbers,) float64: of real numbers; 0: they are not normalised
    "divisors_at",  # (numbers,) float64: their standard deviations
    "frames",
    "stack_at",  # (rows, frames * numbers) float32 or int64: the latest frames of the rows, the newest last
    "times_at",  # (rows,) int64: actions in the running episode
    "time",  # number of actions in which the time goes from 1 to 0; 0: it is not appended
    "codes_at",  # (rows,) int64: the agents among those of the policy
    "codes",  # how many they are; 0: they are not appended
    "starts_at",  # (rows,) bool: where an episode begins with the next action
    "seen_numbers",
    floats=("clip",),  # the limit of normalised numbers
)

_f = np.float32


@strict_kernel
def _ints_at(address: int, size: int) -> Any:
    return carray(pointer(address), (size,), np.int64)


@strict_kernel
def _see_numbers(table: Any, row: int, frames: FloatArray) -> None:
    """Write the frames of a row, the older ones first; NaN for numbers that are not finite."""
    n, older = table.numbers, table.numbers * (table.frames - 1)
    stack = vector_at(table.stack_at + 4 * (older + n) * row, older + n)
    observed = vector_at(table.observed_at + 4 * table.width * _ints_at(table.places_at, row + 1)[row], n)
    means, divisors = doubles_at(table.means_at, n), doubles_at(table.divisors_at, n)
    for j in range(older):
        frames[j] = stack[n + j]
    for j in range(n):
        number = observed[j]
        if not np.isfinite(number):
            number = _f(np.nan)
        elif table.means_at:
            number = _f(min(table.clip, max(-table.clip, (number - means[j]) / divisors[j])))
        frames[older + j] = number
    for j in range(older + n):
        stack[j] = frames[j]


@strict_kernel
def _see_categories(table: Any, row: int, frames: Array) -> None:
    """Write the frames of a row, as `_see_numbers`; -1 for what is no category."""
    n, older = table.numbers, table.numbers * (table.frames - 1)
    stack = _ints_at(table.stack_at + 8 * (older + n) * row, older + n)
    observed = _ints_at(table.observed_at + 8 * table.width * _ints_at(table.places_at, row + 1)[row], n)
    choices = _ints_at(table.choices_at, n)
    for j in range(older):
        frames[j] = stack[n + j]
    for j in range(n):
        frames[older + j] = observed[j] if 0 <= observed[j] < choices[j] else -1
    for j in range(older + n):
        stack[j] = frames[j]


@strict_kernel
def _write_ones(table: Any, frames: Array, seen: FloatArray) -> int:
    """Write categories one-hot, and only NaN for a number that is no category; returns where they end.

    With stacked frames there is one more category: the frame is from before the episode.
    """
    n, more, at = table.numbers, 1 if table.frames > 1 else 0, 0
    choices = _ints_at(table.choices_at, n)
    for j in range(frames.shape[0]):
        size = choices[j % n] + more
        for k in range(size):
            seen[at + k] = _f(np.nan) if frames[j] < 0 else _f(1.0 if frames[j] == k else 0.0)
        at += size
    return at


@strict_kernel
def _append(table: Any, row: int, seen: FloatArray, at: int) -> None:
    """Write the time, then the agent one-hot."""
    if table.time:
        times = _ints_at(table.times_at, row + 1)
        seen[at] = max(1 - times[row] / table.time, 0.0)
        at += 1
    if table.codes:
        code = _ints_at(table.codes_at, row + 1)[row]
        for k in range(table.codes):
            seen[at + k] = _f(1.0 if code == k else 0.0)


@strict_kernel
def _forget(table: Any, row: int) -> None:
    """Begin an episode of a row: frames before the first one are zeros, or categories that no observation has."""
    n, size = table.numbers, table.numbers * table.frames
    if table.choices_at:
        stack, choices = _ints_at(table.stack_at + 8 * size * row, size), _ints_at(table.choices_at, n)
        for j in range(size):
            stack[j] = choices[j % n]
    else:
        floats = vector_at(table.stack_at + 4 * size * row, size)
        for j in range(size):
            floats[j] = _f(0.0)
    _ints_at(table.times_at, row + 1)[row] = 0


def _features(address: int) -> None:
    table = carray(pointer(address), (1,), FEATURES)[0]
    asked, wide, size = _ints_at(table.asked_at, table.asked), table.seen_numbers, table.numbers * table.frames
    starts = carray(pointer(table.starts_at), (table.rows,), np.bool_)
    times = _ints_at(table.times_at, table.rows)
    for k in range(asked.shape[0]):
        row = asked[k]
        if table.act and starts[row]:
            _forget(table, row)
        if table.choices_at and not table.are_ones:
            _see_categories(table, row, _ints_at(table.seen_at + 8 * wide * k, wide))
        else:
            seen, at = vector_at(table.seen_at + 4 * wide * k, wide), size
            if table.choices_at:
                frames = np.empty(size, np.int64)
                _see_categories(table, row, frames)
                at = _write_ones(table, frames, seen)
            else:
                _see_numbers(table, row, seen)
            _append(table, row, seen, at)
        times[row] += 1


def features() -> Any:
    """Return the C function `void(address of a record)` that writes what a policy sees."""
    return c_function(_features, what="the processing of observations in rollouts: about 2 s of one core")
