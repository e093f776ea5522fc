"""Transitions that are carried over from one rollout to the next, and their state in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from marl_sb3.learners.buffers.parts import require_categories
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array, BoolArray, Observations

if TYPE_CHECKING:
    from marl_sb3.learners.buffers.rollout import TransitionsOnly


@dataclass(frozen=True)
class CarriedTransitions:
    """Transitions that were still open at the end of a rollout; they are put at the start of the next one.

    Attributes:
        rows: (rows,) bool; the rows that have an open transition. The arrays hold filler for the others.
        observations: (rows, ...) what the agent saw when it acted.
        columns: name -> (rows, ...): the buffer's `of_transition`; `rewards` are those so far.
    """

    rows: BoolArray
    observations: Observations
    columns: Mapping[str, Array]


def carried_state(waited: CarriedTransitions) -> State:
    """Return open transitions as plain data and arrays."""
    return {"rows": waited.rows, "observations": waited.observations, "columns": dict(waited.columns)}


def read_carried(state: StateReader, buffer: TransitionsOnly) -> CarriedTransitions:
    """Read what `carried_state` returned.

    Raises:
        CheckpointError: the state does not fit the buffer.
    """
    seen, columns = read_transitions(state, buffer, 0)
    return CarriedTransitions(state.array("rows", np.bool_, (buffer.n_envs,)), seen, columns)


def read_transitions(
    state: StateReader, buffer: TransitionsOnly, steps: int | slice
) -> tuple[Observations, dict[str, Array]]:
    """Read observations and columns, which have to have the shapes of these steps of the buffer."""
    read = state.fields("columns")
    read.require_names(buffer.of_transition)
    likes = {name: getattr(buffer, name)[steps] for name in buffer.of_transition}
    columns = {name: read.array(name, like.dtype, like.shape) for name, like in likes.items()}
    require_categories(columns["actions"], buffer.action_space, f"{read.where}/actions")
    own: Any = buffer.observations
    space, where = buffer.observation_space, f"{state.where}/observations"
    if not isinstance(space, spaces.Dict):
        return _read_part(state, "observations", own[steps], space, where), columns
    keys = state.fields("observations")
    keys.require_names(list(space.spaces))
    return {key: _read_part(keys, key, own[key][steps], part, where) for key, part in space.spaces.items()}, columns


def _read_part(state: StateReader, name: str, like: Array, space: spaces.Space[Any], where: str) -> Array:
    array = state.array(name, like.dtype, like.shape)
    require_categories(array, space, where)
    return array
