"""The log of the actions of an env's running episode, which restores the env by a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import CheckpointError
from marl_sb3.types import Array
from marl_sb3.vec_env.groups import AgentGroup

MAX_BYTES = 2**26  # of all logs in a checkpoint; logs that do not fit are left out, and their envs begin new episodes
_FIRST_STEPS = 64  # initial capacity, doubled when it is exceeded


class ActionLog:
    """The actions of all agents of one env since the start of its episode."""

    def __init__(self, groups: Sequence[AgentGroup]) -> None:
        self._forms = [
            ((len(group.agents), *(group.action_space.shape or ())), group.action_space.dtype) for group in groups
        ]
        self._rows = self._room(_FIRST_STEPS)
        self._length = 0
        self._complete = True

    def begin(self) -> None:
        """Begin an episode with an empty log."""
        self._length, self._complete = 0, True

    def drop(self) -> None:
        """Mark the actions of the running episode as unknown."""
        self._length, self._complete = 0, False

    def record(self, actions: Sequence[Array]) -> None:
        """Append the actions of one step: per group, (A_group, ...)."""
        number = self._length
        if number == len(self._rows[0]):
            self._grow()
        if self._complete:
            for rows, row in zip(self._rows, actions, strict=True):
                rows[number] = row
            self._length = number + 1

    def _grow(self) -> None:
        """Double the capacity, up to the limit of a checkpoint."""
        if sum(rows.nbytes for rows in self._rows) > MAX_BYTES:
            self._rows = self._room(_FIRST_STEPS)
            self.drop()
            return
        larger = self._room(2 * self._length)
        for rows, old in zip(larger, self._rows, strict=True):
            rows[: self._length] = old
        self._rows = larger

    def _room(self, steps: int) -> list[Array]:
        return [np.empty((steps, *shape), dtype) for shape, dtype in self._forms]

    def actions(self) -> tuple[Array, ...] | None:
        """Return copies of the actions per group, (steps, A_group, ...); None if they are unknown."""
        return tuple(rows[: self._length].copy() for rows in self._rows) if self._complete else None


def require_possible(array: Array, space: spaces.Space[Any], where: str) -> None:
    """Refuse numbers that are not in a space, (..., *space.shape): envs and one-hot inputs do not check them.

    Zeros, which fill the places of inactive agents, are accepted. Bounds of a Box are checked up to rounding.
    """
    low: Any
    high: Any
    if isinstance(space, spaces.Box):
        low, high = np.minimum(space.low, 0), np.maximum(space.high, 0)
    elif isinstance(space, spaces.Discrete):
        low, high = min(int(space.start), 0), max(int(space.start) + int(space.n) - 1, 0)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = np.minimum(space.start, 0), np.maximum(space.start + space.nvec - 1, 0)
    else:
        low, high = 0, 1
    slack = 1e-6 * np.maximum(np.abs(low), np.abs(high)) if isinstance(space, spaces.Box) else 0
    if (array < low - slack).any() or (array > high + slack).any():
        raise CheckpointError(f"{where} holds numbers that are not in {space}")
