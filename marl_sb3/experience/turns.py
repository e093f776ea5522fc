"""The transitions that are not over: which rows have one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from marl_sb3.storage.parts import Fields, Stateful, array, arrays
from marl_sb3.storage.state import StateReader
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.observations import map_arrays
from marl_sb3.vec_env.slot_states import require_possible


def pairs(own: Any, given: Observations) -> Iterator[tuple[Array, Array]]:
    """Pair the arrays of two batches of observations, part by part."""
    if isinstance(given, dict):
        yield from ((own[key], given[key]) for key in own)
    else:
        yield own, given


def require_categories(array: Array, space: spaces.Space[Any], where: str) -> None:
    """Refuse numbers outside a space of categories: they are indices into arrays. A Box may hold any numbers.

    Args:
        array: (..., *space.shape), or with all axes of the space in one.
        space: of the numbers.
        where: the place of the array in a checkpoint, for the message.

    Raises:
        CheckpointError: a number is not in the space.
    """
    if not isinstance(space, spaces.Box):
        require_possible(array.reshape(-1, *(space.shape or ())), space, where)


def require_observed(seen: Observations, space: spaces.Space[Any], where: str) -> None:
    """Refuse observations with numbers outside the categories of a space; see `require_categories`."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    for key, part in parts.items():
        require_categories(seen[key] if isinstance(seen, dict) else seen, part, f"{where}/{key}" if key else where)


class OpenTransitions(Stateful):
    """The transition of each row that is not over: what its agent saw and did. `RowProcessing` sums its rewards.

    Args:
        observation_space: what a row observes, as SB3 sees it.
        action_space: what it does.
        action_dtype: of the actions that are learned from.

    Attributes:
        rows: (rows,) bool; the rows that have one.
    """

    def __init__(
        self,
        num_rows: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        action_dtype: np.dtype[Any],
    ) -> None:
        self.rows = np.zeros(num_rows, dtype=np.bool_)
        self._observation_space = observation_space
        self._action_space = action_space
        self._observations: Any = (
            {key: _zeros(num_rows, part) for key, part in observation_space.spaces.items()}
            if isinstance(observation_space, spaces.Dict)
            else _zeros(num_rows, observation_space)
        )
        self._actions = np.zeros((num_rows, *(action_space.shape or ())), dtype=action_dtype)

    def begin(self, rows: BoolArray, observations: Observations, actions: Array) -> None:
        """Open a transition for each row that acts, (rows,) bool; all arrays are (rows, ...)."""
        chosen = index_of(rows)
        for own, given in pairs(self._observations, observations):
            own[chosen] = given.reshape(own.shape)[chosen]
        self._actions[chosen] = actions[chosen]
        self.rows |= rows

    def take(self, rows: BoolArray) -> tuple[Observations, Array]:
        """Close the transitions of these rows, (rows,) bool; returns their observations and actions."""
        chosen = index_of(rows)
        taken = map_arrays(lambda array: array[chosen].copy(), self._observations)
        self.rows = self.rows & ~rows
        return taken, self._actions[chosen].copy()

    def drop(self, rows: BoolArray) -> None:
        """Forget the transitions of these rows, (rows,) bool."""
        self.rows = self.rows & ~rows

    def clear(self) -> None:
        """Forget all transitions."""
        self.drop(np.ones_like(self.rows))

    fields: ClassVar[Fields] = {
        "rows": array("rows"),
        "actions": array("_actions"),
        "observations": arrays("_observations"),
    }

    def check_state(self, values: Mapping[str, Any], state: StateReader) -> None:
        """Refuse categories outside their space: they are indices into arrays."""
        require_categories(values["actions"], self._action_space, f"{state.where}/actions")
        require_observed(values["observations"], self._observation_space, f"{state.where}/observations")


def index_of(rows: BoolArray) -> Any:
    """Return an index of these rows, (rows,) bool: a slice if it is all of them, which NumPy takes much faster."""
    return slice(None) if np.count_nonzero(rows) == len(rows) else rows


def _zeros(num_rows: int, space: spaces.Space[Any]) -> Array:
    return np.zeros((num_rows, *(space.shape or ())), dtype=space.dtype)
