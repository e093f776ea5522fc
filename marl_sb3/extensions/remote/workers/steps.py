"""A step on its way from the workers: arrays in memory that all processes map, and messages for the rest.

The memory is an anonymous file, which the system frees when the last process that uses it has ended.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marl_sb3.core.vec_env.observations import AgentGroup, map_arrays, put, zero_observations
from marl_sb3.core.vec_env.step import StepInfos, VecStep
from marl_sb3.extensions.remote.processes.channel import PAGE
from marl_sb3.extensions.remote.workers.spec import WorkerSpec
from marl_sb3.types import AgentID, Array, BoolArray, Observations
from marl_sb3.wrappers.observations import choices_of

_LINE = 64  # bytes of a cache line: no array shares one with another
_FLAGS = ("terminated", "truncated", "to_act", "in_play")
_ARRAYS = ("rewards", *_FLAGS, "episode_done")
_ALL_ENVS = slice(None)


class SharedArrays:
    """The arrays of a step of E envs, or of some of them.

    Args:
        file: descriptor of the shared memory; `reserve` has to have made it large enough.
        groups: the agents by their spaces.
        num_envs: E.
        rows: the envs whose arrays are wanted.

    Attributes:
        actions: per group, (E, A_group, ...).
        action_masks: per group, (E, A_group, n) bool; None for spaces that have no masks.
        observations, rewards, terminated, truncated, to_act, in_play, episode_done: as in a `VecStep`.
    """

    actions: tuple[Array, ...]
    observations: tuple[Observations, ...]
    action_masks: tuple[BoolArray | None, ...]
    rewards: Array
    terminated: BoolArray
    truncated: BoolArray
    to_act: BoolArray
    in_play: BoolArray
    episode_done: BoolArray

    def __init__(self, file: int, groups: Sequence[AgentGroup], num_envs: int, rows: slice = _ALL_ENVS) -> None:
        memory = mmap.mmap(file, 0)
        offset = 0

        def place(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
            nonlocal offset
            array: Array = np.ndarray(shape, dtype, memory, offset)
            offset += _rounded(array.nbytes, _LINE)
            return array[rows]

        self.__dict__.update(_laid_out(groups, num_envs, place))

    @classmethod
    def reserve(cls, file: int, groups: Sequence[AgentGroup], num_envs: int) -> None:
        """Make the shared memory large enough.

        Raises:
            MemoryError: there is not so much memory.
        """
        sizes: list[int] = []

        def place(shape: Sequence[int], dtype: npt.DTypeLike) -> None:
            sizes.append(_rounded(math.prod(shape) * np.dtype(dtype).itemsize, _LINE))

        _laid_out(groups, num_envs, place)
        size = _rounded(max(sum(sizes), 1), PAGE)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, size)
            else:  # macOS
                os.ftruncate(file, size)
        except OSError as error:
            raise MemoryError(f"{size:,} bytes of shared memory: {error.strerror}") from error

    def copies(self) -> dict[str, Any]:
        """Return copies of the arrays that a `VecStep` has, except for masks, by their names in it."""
        observations = tuple(map_arrays(np.copy, group) for group in self.observations)
        return {"observations": observations, **{name: getattr(self, name).copy() for name in _ARRAYS}}

    def write(self, step: VecStep) -> None:
        """Write a step of these envs."""
        for ours, shared in zip(step.observations, self.observations, strict=True):
            put(ours, shared, _ALL_ENVS)
        for masks, shared_masks in zip(step.action_masks, self.action_masks, strict=True):
            if masks is not None and shared_masks is not None:
                shared_masks[:] = masks
        for name in _ARRAYS:
            getattr(self, name)[:] = getattr(step, name)


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _laid_out(groups: Sequence[AgentGroup], num_envs: int, place: Callable[..., Any]) -> dict[str, Any]:
    """Place all arrays, in the same order in every process; returns them by name."""
    n_agents = sum(len(group.agents) for group in groups)
    return {
        "actions": tuple(
            place((num_envs, len(group.agents), *(group.action_space.shape or ())), group.action_space.dtype)
            for group in groups
        ),
        "observations": tuple(
            map_arrays(lambda one: place((num_envs, *one.shape[1:]), one.dtype), group)
            for group in zero_observations(groups, num_envs=1)
        ),
        "action_masks": tuple(
            None if choices is None else place((num_envs, len(group.agents), sum(choices)), np.bool_)
            for group, choices in ((group, choices_of(group.action_space)) for group in groups)
        ),
        "rewards": place((num_envs, n_agents), np.float32),
        **{name: place((num_envs, n_agents), np.bool_) for name in _FLAGS},
        "episode_done": place((num_envs,), np.bool_),
    }


# --- The rest of a step ----------------------------------------------------------------------------------------------


class Extras(NamedTuple):
    """The part of a worker's step that does not fit into arrays; rows are counted within the worker."""

    infos: bytes | None = None  # pickled infos; None: empty ones, one for each agent that acted
    final_observations: Mapping[tuple[int, int], Any] = {}  # (row, column) -> observation
    reset_infos: Mapping[int, Mapping[str, Any]] = {}  # row -> infos of its reset
    # group -> whether an agent that acts has a mask, for groups of which this is not known yet
    masked: Mapping[int, bool] = {}
    messages: Sequence[Any] = ()  # log records and warnings: see `MessageLog`
    env_state: Array | None = None  # (E of the worker, ...), see `VecStep.env_state`
    final_env_states: Mapping[int, Array] = {}  # row -> state in which its episode ended

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        mappings = self.final_observations, self.reset_infos, self.masked, self.messages, self.final_env_states
        return self.infos is None and self.env_state is None and not any(mappings)


NO_EXTRAS = Extras()


def joined_extras(parts: Sequence[Extras], specs: Sequence[WorkerSpec]) -> Extras:
    """Return the extras of all workers without infos, with rows counted among all envs.

    A group has masks if an agent of any worker has one.
    """
    finals: dict[tuple[int, int], Any] = {}
    reset_infos: dict[int, Mapping[str, Any]] = {}
    masked: dict[int, bool] = {}
    final_states: dict[int, Array] = {}
    for part, spec in zip(parts, specs, strict=True):
        first = spec.first_index
        finals |= {(first + row, column): seen for (row, column), seen in part.final_observations.items()}
        reset_infos |= {first + row: infos for row, infos in part.reset_infos.items()}
        masked |= {number: masked.get(number, False) or found for number, found in part.masked.items()}
        final_states |= {first + row: state for row, state in part.final_env_states.items()}
    messages = [message for part in parts for message in part.messages]
    states = [part.env_state for part in parts if part.env_state is not None]
    env_state = np.concatenate(states) if states else None
    return Extras(None, finals, reset_infos, masked, messages, env_state, final_states)


def joined_infos(
    parts: Sequence[Extras], specs: Sequence[WorkerSpec], acted: BoolArray, agents: Sequence[AgentID]
) -> StepInfos:
    """Return the infos of all workers.

    Args:
        parts: of each worker; all of them without infos may be given as none.
        acted: (E, A) bool.
        agents: in the order of the agent axis.
    """
    if all(part.infos is None for part in parts):
        return _WorkerInfos(None, acted, agents)
    infos = [_WorkerInfos(part.infos, acted[spec.rows], agents) for part, spec in zip(parts, specs, strict=True)]
    return JoinedInfos(infos, [spec.first_index for spec in specs])


class _WorkerInfos:
    """Infos as a worker has sent them, which are unpickled when they are read.

    Args:
        pickled: None: they say nothing: an empty dictionary for each agent that acted.
        acted: (E, A) bool.
        agents: in the order of the agent axis.
    """

    def __init__(self, pickled: bytes | None, acted: BoolArray, agents: Sequence[AgentID]) -> None:
        self._pickled, self._acted, self._agents = pickled, acted, agents

    @cached_property
    def _infos(self) -> StepInfos | None:
        return None if self._pickled is None else pickle.loads(self._pickled)

    def __getitem__(self, env_index: int) -> Mapping[str, Any]:
        if self._infos is not None:
            return self._infos[env_index]
        return {agent: {} for agent, did in zip(self._agents, self._acted[env_index].tolist(), strict=True) if did}

    def values(self, agent: AgentID, key: str) -> Array:
        """See `StepInfos.values`."""
        return np.full(len(self._acted), np.nan) if self._infos is None else self._infos.values(agent, key)


class JoinedInfos:
    """The infos of several vec envs, one after the other.

    Args:
        parts: of each vec env.
        starts: index of the first env of each.
    """

    def __init__(self, parts: Sequence[StepInfos], starts: Sequence[int]) -> None:
        self._parts = parts
        self._starts = starts

    def __getitem__(self, env_index: int) -> Mapping[str, Any]:
        number = bisect_right(self._starts, env_index) - 1
        return self._parts[number][env_index - self._starts[number]]

    def values(self, agent: AgentID, key: str) -> Array:
        """See `StepInfos.values`."""
        return np.concatenate([part.values(agent, key) for part in self._parts])
