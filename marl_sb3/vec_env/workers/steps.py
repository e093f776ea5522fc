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
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from marl_sb3.processes.channel import PAGE
from marl_sb3.processes.messages import pass_on
from marl_sb3.types import AgentID, Array, BoolArray, Observations
from marl_sb3.vec_env.observations import AgentGroup, map_arrays, zero_observations
from marl_sb3.vec_env.step import FinalObservations, StepInfos, VecStep
from marl_sb3.vec_env.workers.spec import WorkerSpec
from marl_sb3.wrappers.observations import choices_of

_LINE = 64  # bytes of a cache line: no array shares one with another
_FLAGS = ("terminated", "truncated", "to_act", "in_play")
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
        observations: per group, (E, A_group, ...), as in a `VecStep`.
        action_masks: per group, (E, A_group, n) bool; None for spaces that have no masks.
        rewards: (E, A) float32.
        terminated: (E, A) bool.
        truncated: (E, A) bool.
        to_act: (E, A) bool.
        in_play: (E, A) bool.
        episode_done: (E,) bool.
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
        memory = mmap.mmap(file, _size(groups, num_envs))
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
        size = _size(groups, num_envs)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, size)
            else:  # macOS
                os.ftruncate(file, size)
        except OSError as error:
            raise MemoryError(f"{size:,} bytes of shared memory: {error.strerror}") from error

    def copied_observations(self) -> tuple[Observations, ...]:
        """Return copies of the observations."""
        return tuple(
            {key: array.copy() for key, array in group.items()} if isinstance(group, dict) else group.copy()
            for group in self.observations
        )

    def write(self, step: VecStep) -> None:
        """Write a step of these envs."""
        for ours, shared in zip(step.observations, self.observations, strict=True):
            if isinstance(ours, dict):
                assert isinstance(shared, dict)
                for key, array in ours.items():
                    shared[key][:] = array
            else:
                assert not isinstance(shared, dict)
                shared[:] = ours
        for masks, shared_masks in zip(step.action_masks, self.action_masks, strict=True):
            if masks is not None and shared_masks is not None:
                shared_masks[:] = masks
        self.rewards[:] = step.rewards
        self.terminated[:] = step.terminated
        self.truncated[:] = step.truncated
        self.to_act[:] = step.to_act
        self.in_play[:] = step.in_play
        self.episode_done[:] = step.episode_done


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _size(groups: Sequence[AgentGroup], num_envs: int) -> int:
    total = 0

    def place(shape: Sequence[int], dtype: npt.DTypeLike) -> Any:
        nonlocal total
        total += _rounded(math.prod(shape) * np.dtype(dtype).itemsize, _LINE)

    _laid_out(groups, num_envs, place)
    return _rounded(max(total, 1), PAGE)


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
        "action_masks": tuple(_masks(group, num_envs, place) for group in groups),
        "rewards": place((num_envs, n_agents), np.float32),
        **{name: place((num_envs, n_agents), np.bool_) for name in _FLAGS},
        "episode_done": place((num_envs,), np.bool_),
    }


def _masks(group: AgentGroup, num_envs: int, place: Callable[..., Any]) -> Any:
    choices = choices_of(group.action_space)
    return None if choices is None else place((num_envs, len(group.agents), sum(choices)), np.bool_)


# --- The rest of a step ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extras:
    """The part of a worker's step that does not fit into arrays; rows are counted within the worker.

    Attributes:
        infos: pickled infos; None: empty ones, one for each agent that acted.
        final_observations: (row, column) -> observation.
        reset_infos: row -> infos of its reset.
        masked: group -> whether an agent that acts has a mask, for groups of which this is not known yet.
        messages: log records and warnings: see `MessageLog`.
        env_state: (E of the worker, ...), see `VecStep.env_state`.
        final_env_states: row -> state in which its episode ended.
    """

    infos: bytes | None = None
    final_observations: Mapping[tuple[int, int], Any] | None = None
    reset_infos: Mapping[int, Mapping[str, Any]] | None = None
    masked: Mapping[int, bool] | None = None
    messages: Sequence[Any] = ()
    env_state: Array | None = None
    final_env_states: Mapping[int, Array] | None = None


NO_EXTRAS = Extras()


class SilentInfos:
    """Infos that say nothing: an empty dictionary for each agent that acted.

    Args:
        acted: (E, A) bool.
        agents: in the order of the agent axis.
    """

    def __init__(self, acted: BoolArray, agents: Sequence[AgentID]) -> None:
        self._acted = acted
        self._agents = agents

    def __getitem__(self, env_index: int) -> dict[AgentID, dict[str, Any]]:
        return {agent: {} for agent, did in zip(self._agents, self._acted[env_index].tolist(), strict=True) if did}

    def values(self, agent: AgentID, key: str) -> Array:
        """Return NaN for each env, (E,) float64."""
        return np.full(len(self._acted), np.nan)


class _PickledInfos:
    """The infos of one worker's envs, as it has pickled them."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self._infos: StepInfos | None = None

    def _unpickled(self) -> StepInfos:
        if self._infos is None:
            self._infos = pickle.loads(self._pickled)
        assert self._infos is not None
        return self._infos

    def __getitem__(self, env_index: int) -> Mapping[str, Any]:
        return self._unpickled()[env_index]

    def values(self, agent: AgentID, key: str) -> Array:
        return self._unpickled().values(agent, key)


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


class JoinedExtras:
    """The extras of all workers.

    Args:
        parts: of each worker.
        specs: of the workers.
    """

    def __init__(self, parts: Sequence[Extras], specs: Sequence[WorkerSpec]) -> None:
        self._parts = parts
        self._specs = specs
        self._starts = [spec.first_index for spec in specs]

    @classmethod
    def unpickled(cls, payloads: Sequence[bytes], specs: Sequence[WorkerSpec]) -> JoinedExtras:
        """Return those in the answers to a step; an answer without a payload has none."""
        return cls([pickle.loads(payload) if payload else NO_EXTRAS for payload in payloads], specs)

    def infos(self, acted: BoolArray, agents: Sequence[AgentID]) -> StepInfos:
        """Return the infos of all envs.

        Args:
            acted: (E, A) bool.
            agents: in the order of the agent axis.
        """
        parts: list[StepInfos] = [
            SilentInfos(acted[spec.rows], agents) if part.infos is None else _PickledInfos(part.infos)
            for part, spec in zip(self._parts, self._specs, strict=True)
        ]
        return parts[0] if len(parts) == 1 else JoinedInfos(parts, self._starts)

    def final_observations(self) -> FinalObservations:
        """Return the observations on which agents ended."""
        return FinalObservations(
            {
                (start + row, column): seen
                for part, start in zip(self._parts, self._starts, strict=True)
                for (row, column), seen in (part.final_observations or {}).items()
            }
        )

    def reset_infos(self) -> dict[int, Mapping[str, Any]]:
        """Return env index -> infos of its reset."""
        return {
            start + row: infos
            for part, start in zip(self._parts, self._starts, strict=True)
            for row, infos in (part.reset_infos or {}).items()
        }

    def env_state(self) -> Array | None:
        """Return the states of all envs, if they are asked for."""
        states = [part.env_state for part in self._parts if part.env_state is not None]
        return np.concatenate(states) if states else None

    def final_env_states(self) -> dict[int, Array]:
        """Return env index -> the state in which its episode ended."""
        return {
            start + row: state
            for part, start in zip(self._parts, self._starts, strict=True)
            for row, state in (part.final_env_states or {}).items()
        }

    def found_masks(self) -> dict[int, bool]:
        """Return group -> whether an agent of any worker has a mask, for groups of which this is not known yet."""
        found: dict[int, bool] = {}
        for part in self._parts:
            for number, has_masks in (part.masked or {}).items():
                found[number] = found.get(number, False) or has_masks
        return found

    def pass_on_messages(self) -> None:
        """Log what the workers have logged."""
        for part in self._parts:
            pass_on(part.messages)
