"""The actions of the running episodes, by which separate envs are brought back to where they were."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import CheckpointError
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array
from marl_sb3.vec_env.groups import AgentGroup

MAX_BYTES = 2**26  # of a log in a checkpoint; a longer one is left out, and the resume is not exact


class ActionLog:
    """What every agent was told since the oldest running episode began.

    Args:
        num_envs: E.
        groups: the agents by their spaces.
    """

    def __init__(self, num_envs: int, groups: Sequence[AgentGroup]) -> None:
        self._num_envs = num_envs
        self._groups = groups
        self._steps: deque[tuple[Array, ...]] = deque()  # per group (E, A_group, ...)
        self._began = [0] * num_envs  # where in `_steps` each env's episode begins

    def begin(self, env_indices: Iterable[int]) -> None:
        """Episodes of these envs begin; what no running episode needs any more is forgotten."""
        for index in env_indices:
            self._began[index] = len(self._steps)
        unused = min(self._began)
        for _ in range(unused):
            self._steps.popleft()
        self._began = [began - unused for began in self._began]

    def record(self, actions: Sequence[Array]) -> None:
        """One step of all envs."""
        self._steps.append(tuple(np.array(group) for group in actions))

    def of_env(self, env_index: int) -> Iterator[list[Array]]:
        """The actions of each step of the env's episode: per group (A_group, ...)."""
        for step in list(self._steps)[self._began[env_index] :]:
            yield [group[env_index] for group in step]

    def get_state(self) -> State | None:
        """None where it is too long."""
        if len(self._steps) * sum(group.nbytes for group in next(iter(self._steps), ())) > MAX_BYTES:
            return None
        actions = [self._stacked(number, group) for number, group in enumerate(self._groups)]
        return {"actions": actions, "began": np.array(self._began, dtype=np.int64)}

    def _stacked(self, number: int, group: AgentGroup) -> Array:
        if self._steps:
            return np.stack([step[number] for step in self._steps])
        shape = (0, self._num_envs, len(group.agents), *(group.action_space.shape or ()))
        return np.zeros(shape, dtype=group.action_space.dtype)

    def set_state(self, state: StateReader) -> None:
        """Take over a log.

        Raises:
            CheckpointError: it is not one of such envs.
        """
        listed = state.items("actions", len(self._groups))
        by_group = StateReader({str(number): array for number, array in enumerate(listed)}, f"{state.where}/actions")
        actions = [
            by_group.array(
                str(number),
                group.action_space.dtype,  # type: ignore[arg-type]
                (None, self._num_envs, len(group.agents), *(group.action_space.shape or ())),
            )
            for number, group in enumerate(self._groups)
        ]
        for group, array in zip(self._groups, actions, strict=True):
            require_possible(array, group.action_space, by_group.where)
        length = len(actions[0])
        if sum(array.nbytes for array in actions) > MAX_BYTES:
            raise CheckpointError(f"{by_group.where} has more than {MAX_BYTES} bytes")
        began = state.array("began", np.int64, (self._num_envs,))
        if any(len(group) != length for group in actions) or (began < 0).any() or (began > length).any():
            raise state.error("began", began, f"from 0 to {length}, the length of all logs")
        self._steps = deque(zip(*actions, strict=True))
        self._began = began.tolist()


def require_possible(array: Array, space: spaces.Space[Any], where: str) -> None:
    """Refuse numbers that are not in a space, (..., *space.shape), as envs and one-hot inputs do not check them.

    Zeros fill the places of inactive agents. Bounds of a Box hold but for rounding; it may have none.

    Raises:
        CheckpointError: `where` is the place of the array.
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
