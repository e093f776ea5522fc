"""Deciders choose the actions of a batch of rows by calling an SB3 policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.learners.sb3.predict import States, initial_states, predict, takes_masks
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.observations import map_arrays


class Batch(NamedTuple):
    """The inputs of a policy for some rows.

    Attributes:
        observations: (rows, ...).
        starts: (rows,) bool; True where an episode starts: the recurrent state is not used there.
        masks: (rows, n) bool, True where an action is allowed; None: all are allowed, or the policy takes no masks.
        states: recurrent state, (layers, rows, size) each; () for a policy without memory.
    """

    observations: Observations
    starts: BoolArray
    masks: BoolArray | None
    states: States

    def of_rows(self, wanted: BoolArray) -> Batch:
        """Return the batch of the rows where `wanted`, (rows,) bool, is True."""
        return Batch(
            map_arrays(lambda array: array[wanted], self.observations),
            self.starts[wanted],
            None if self.masks is None else self.masks[wanted],
            tuple(array[:, wanted] for array in self.states),
        )


class Decision(Protocol):
    """A tuple of arrays, (rows, ...) each: the actions as the env takes them, and what the learner needs of them."""

    @property
    def actions(self) -> Array:
        """(rows, *action shape), as the env takes them."""

    def __iter__(self) -> Iterator[Array]: ...


D_co = TypeVar("D_co", bound=Decision, covariant=True)


class Decider(Protocol[D_co]):
    """Chooses the actions of a batch of rows that act."""

    @property
    def takes_masks(self) -> bool:
        """Whether the policy uses action masks."""

    def initial_states(self, rows: int) -> States:
        """Return the recurrent state of `rows` rows at the start of an episode; () without memory."""

    def decide(self, batch: Batch) -> tuple[D_co, States]:
        """Choose actions.

        Returns:
            The decision, and the new recurrent states.
        """

    def no_decision(self, rows: int) -> D_co:
        """Return a decision of zeros for `rows` rows that do not act."""


class Actions(NamedTuple):
    """A decision of actions alone: no learner records anything else of it."""

    actions: Array


class PredictDecider:
    """Chooses actions by SB3's `predict`: for everything but training.

    Args:
        deterministic: the most likely actions instead of sampled ones.
    """

    def __init__(self, algorithm: BaseAlgorithm, deterministic: bool) -> None:
        self.takes_masks = takes_masks(algorithm)
        self._algorithm = algorithm
        self._deterministic = deterministic

    def initial_states(self, rows: int) -> States:
        """See `Decider.initial_states`."""
        return initial_states(self._algorithm, rows)

    def decide(self, batch: Batch) -> tuple[Actions, States]:
        """See `Decider.decide`."""
        observations, starts, masks, states = batch
        actions, after = predict(self._algorithm, observations, states, starts, masks, self._deterministic)
        return Actions(actions), after

    def no_decision(self, rows: int) -> Actions:
        """See `Decider.no_decision`."""
        return Actions(zero_actions_of(self._algorithm, rows))


def zero_actions_of(algorithm: BaseAlgorithm, rows: int) -> Array:
    """(rows, *action shape) zeros."""
    space = algorithm.action_space
    return np.zeros((rows, *(space.shape or ())), dtype=space.dtype)
