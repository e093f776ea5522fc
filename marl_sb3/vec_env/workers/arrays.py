"""The arrays of a step of all envs, in memory that the main process and all workers map.

The memory is an anonymous file, which the system frees when the last process that uses it has ended.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.groups import AgentGroup
from marl_sb3.vec_env.observations import map_arrays, zero_observations
from marl_sb3.wrappers.action_mask import choices_of

_LINE = 64  # bytes of a cache line: no array shares one with another
_PAGE = mmap.ALLOCATIONGRANULARITY


def anonymous_file(name: str) -> int:
    """Return the descriptor of a file in memory that has no path."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class Board:
    """What a worker is doing: two numbers in the shared memory, which it writes and the main process reads.

    Args:
        numbers: the memory, two signed integers of 64 bits.
    """

    def __init__(self, numbers: memoryview) -> None:
        self._numbers = numbers

    @property
    def progress(self) -> int:
        """How many calls of envs the worker has completed."""
        return self._numbers[0]

    @property
    def env_index(self) -> int:
        """Index of the env that the worker has called last."""
        return self._numbers[1]

    def at(self, env_index: int) -> None:
        """Note that a call of this env begins."""
        self._numbers[1] = env_index

    def advance(self) -> None:
        """Note that a call is complete."""
        self._numbers[0] += 1


def boards(file: int, n_workers: int) -> list[Board]:
    """Map the boards of all workers, which are at the start of the shared memory.

    Args:
        file: descriptor of the shared memory, of at least `board_bytes`.
        n_workers: number of workers.
    """
    numbers = memoryview(mmap.mmap(file, board_bytes(n_workers))).cast("q")
    return [Board(numbers[start:]) for start in range(0, n_workers * _LINE // 8, _LINE // 8)]


def board_bytes(n_workers: int) -> int:
    """Return the bytes that the boards of all workers take."""
    return _rounded(n_workers * _LINE, _PAGE)


class SharedArrays:
    """The arrays of a step of E envs.

    Args:
        file: descriptor of the shared memory; it has to be large enough, see `make_room`.
        groups: the agents by their spaces.
        num_envs: E.
        n_workers: number of workers.

    Attributes:
        actions: per group, (E, A_group, ...).
        observations: per group, (E, A_group, ...), as in a `VecStep`.
        action_masks: per group, (E, A_group, n) bool; None for spaces that have no masks.
        rewards: (E, A) float32.
        terminated: (E, A) bool.
        truncated: (E, A) bool.
        to_act: (E, A) bool.
        episode_done: (E,) bool.
    """

    actions: tuple[Array, ...]
    observations: tuple[Observations, ...]
    action_masks: tuple[BoolArray | None, ...]
    rewards: Array
    terminated: BoolArray
    truncated: BoolArray
    to_act: BoolArray
    episode_done: BoolArray

    def __init__(self, file: int, groups: Sequence[AgentGroup], num_envs: int, n_workers: int) -> None:
        size = _size(groups, num_envs)
        memory = mmap.mmap(file, size, offset=board_bytes(n_workers))
        offset = 0

        def place(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
            nonlocal offset
            array: Array = np.ndarray(shape, dtype, memory, offset)
            offset += _rounded(array.nbytes, _LINE)
            return array

        _lay_out(self, groups, num_envs, place)

    def copied_observations(self) -> tuple[Observations, ...]:
        """Return copies of the observations."""
        return tuple(
            {key: array.copy() for key, array in group.items()} if isinstance(group, dict) else group.copy()
            for group in self.observations
        )

    @classmethod
    def make_room(cls, file: int, groups: Sequence[AgentGroup], num_envs: int, n_workers: int) -> None:
        """Make the shared memory large enough.

        Raises:
            MemoryError: there is not so much memory.
        """
        size = board_bytes(n_workers) + _size(groups, num_envs)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, size)
            else:  # macOS
                os.ftruncate(file, size)
        except OSError as error:
            raise MemoryError(f"{size:,} bytes of shared memory: {error.strerror}") from error


def _size(groups: Sequence[AgentGroup], num_envs: int) -> int:
    total = 0

    def place(shape: Sequence[int], dtype: npt.DTypeLike) -> Any:
        nonlocal total
        total += _rounded(math.prod(shape) * np.dtype(dtype).itemsize, _LINE)

    _lay_out(None, groups, num_envs, place)
    return _rounded(max(total, 1), _PAGE)


def _lay_out(
    arrays: SharedArrays | None, groups: Sequence[AgentGroup], num_envs: int, place: Callable[..., Any]
) -> None:
    """Place all arrays, in the same order in every process."""
    n_agents = sum(len(group.agents) for group in groups)
    both = (num_envs, n_agents)
    fields = {
        "actions": tuple(
            place((*_rows(num_envs, group), *(group.action_space.shape or ())), group.action_space.dtype)
            for group in groups
        ),
        "observations": tuple(
            map_arrays(lambda one: place((num_envs, *one.shape[1:]), one.dtype), group)
            for group in zero_observations(groups, num_envs=1)
        ),
        "action_masks": tuple(_masks(group, num_envs, place) for group in groups),
        "rewards": place(both, np.float32),
        **{name: place(both, np.bool_) for name in ("terminated", "truncated", "to_act")},
        "episode_done": place((num_envs,), np.bool_),
    }
    if arrays is not None:
        arrays.__dict__.update(fields)


def _rows(num_envs: int, group: AgentGroup) -> tuple[int, int]:
    return num_envs, len(group.agents)


def _masks(group: AgentGroup, num_envs: int, place: Callable[..., Any]) -> Any:
    choices = choices_of(group.action_space)
    return None if choices is None else place((*_rows(num_envs, group), sum(choices)), np.bool_)
