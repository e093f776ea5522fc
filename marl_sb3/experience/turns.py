"""What all experience has in common, and the transitions that are not over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from marl_sb3.acting.actor import Acted, Actor, Observed
from marl_sb3.storage.parts import Fields, Stateful, array, arrays
from marl_sb3.storage.state import StateReader
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.observations import map_arrays, pairs, zeros
from marl_sb3.vec_env.slot_states import require_categories, require_observed
from marl_sb3.vec_env.step import VecStep


class Experience(Stateful, ABC):
    """What a policy learns from, recorded in this process: a rollout, or transitions in a replay buffer.

    A transition of an agent runs from its action to its next turn or its end, with all that it is paid meanwhile.

    Args:
        actor: acts for the rows of the policy.

    Attributes:
        steps: since the rollout began.
    """

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.algorithm: Any = actor.policy.algorithm
        self.steps = 0

    @abstractmethod
    def due_in(self) -> int:
        """Return the env steps of each env until the next update, at the end of a rollout; 0: now."""

    @abstractmethod
    def begin_episodes(self) -> None:
        """Note that all envs have just been reset."""

    @abstractmethod
    def begin_rollout(self) -> None:
        """Begin a new rollout."""

    @abstractmethod
    def give_up(self, rows: BoolArray) -> None:
        """Give up the open transitions of these rows, (rows,) bool, because other episodes have begun there."""

    @abstractmethod
    def begin(self, acted: Acted) -> None:
        """Open a transition for each row that acts."""

    @abstractmethod
    def add(self, observed: Observed) -> None:
        """Take in rewards and ends of a step, also those of rows that wait."""

    @abstractmethod
    def break_off(self) -> None:
        """Give up the rollout instead of taking in its latest step, so that a new rollout is due."""

    def complete(self, step: VecStep) -> None:
        """Complete the rollout after its last step."""

    def recorded(self) -> Any:
        """Return what a shard sends to the learner after a round; see `ShardedExperience.receive`."""
        raise NotImplementedError


class OpenTransitions(Stateful):
    """The transition of each row that is not over: what its agent saw and did. `RowProcessing` sums its rewards.

    Args:
        observation_space: what a row observes, as SB3 sees it.
        action_space: what it does.

    Attributes:
        rows: (rows,) bool; the rows that have one.
    """

    fields: ClassVar[Fields] = {
        "rows": array("rows"),
        "actions": array("_actions"),
        "observations": arrays("_observations"),
    }

    def __init__(self, num_rows: int, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.rows = np.zeros(num_rows, dtype=np.bool_)
        self._observation_space = observation_space
        self._action_space = action_space
        self._observations = zeros(observation_space, (num_rows,))
        dtype = np.float32 if action_space.dtype == np.float64 else action_space.dtype  # as in SB3's replay buffers
        self._actions = np.zeros((num_rows, *(action_space.shape or ())), dtype=dtype)

    def begin(self, rows: BoolArray, observations: Observations, actions: Array) -> None:
        """Open a transition for each row that acts, (rows,) bool; all arrays are (rows, ...)."""
        chosen = index_of(rows)
        for own, given in pairs(self._observations, observations):
            own[chosen] = given.reshape(own.shape)[chosen]
        self._actions[chosen] = actions[chosen]
        self.rows |= rows

    def pop(self, rows: BoolArray) -> tuple[Observations, Array]:
        """Close the transitions of these rows, (rows,) bool; returns their observations and actions."""
        chosen = index_of(rows)
        taken = map_arrays(lambda array: array[chosen].copy(), self._observations)
        self.rows = self.rows & ~rows
        return taken, self._actions[chosen].copy()

    def drop(self, rows: BoolArray) -> None:
        """Forget the transitions of these rows, (rows,) bool."""
        self.rows = self.rows & ~rows

    def check_state(self, values: Mapping[str, Any], state: StateReader) -> None:
        """Refuse categories outside their space: they are indices into arrays."""
        require_categories(values["actions"], self._action_space, f"{state.where}/actions")
        require_observed(values["observations"], self._observation_space, f"{state.where}/observations")


def index_of(rows: BoolArray) -> Any:
    """Return an index of these rows, (rows,) bool: a slice if it is all of them, which NumPy takes much faster."""
    return slice(None) if np.count_nonzero(rows) == len(rows) else rows
