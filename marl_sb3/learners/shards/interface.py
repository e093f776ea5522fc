"""How a policy acts in a shard, and how its experience gets from there to its learner.

A shard is a fixed share of the envs. In each round, all shards act with the weights that the learner had at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from marl_sb3.learners.learner import Collector, RolloutOwner
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array, BoolArray

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class PolicyOrder:
    """What a shard needs to know of a policy in a round.

    Attributes:
        weights: by name, as a checkpoint holds them.
        statistics: of the processing, as plain data.
        exploration_rate: DQN's probability of random actions; 0 for other algorithms.
    """

    weights: Arrays
    statistics: State
    exploration_rate: float


@dataclass(frozen=True)
class PolicyRollout:
    """What a policy experienced in one round of one shard.

    Attributes:
        experience: what its receiver takes; None if there is nothing to learn from yet.
        statistics: what came into the statistics of its processing in the round, as plain data.
    """

    experience: Any
    statistics: State


class ShardPolicy(Protocol):
    """A copy of a policy that acts for the rows of one shard."""

    @property
    def collector(self) -> Collector:
        """The collector that acts for the rows."""

    def begin_round(self, order: PolicyOrder, seed: int) -> None:
        """Take over weights and statistics, and seed the random actions; called before the rollouts begin."""

    def begin_step(self, step: int) -> None:
        """Note which step of the round is recorded next, counted from 0."""

    def finish_round(self) -> PolicyRollout:
        """Return what was recorded in the round."""

    def get_state(self) -> State:
        """Return the running state, as plain data and arrays, without the weights."""

    def read_state(self, state: StateReader) -> Callable[[], None]:
        """Check what `get_state` returned; see `Part.read_state`."""


class Receiver(RolloutOwner, Protocol):
    """Takes the place of a learner's collector: passes the experience of all shards to the learner."""

    def order(self) -> PolicyOrder:
        """Return what the shards need to know in the next round."""

    def receive(self, rollouts: Sequence[PolicyRollout], acted: BoolArray, progress: Sequence[float]) -> None:
        """Take in one round.

        Args:
            rollouts: of each shard, in the order of the shards.
            acted: (steps, rows) bool; the rows that acted.
            progress: after each step, from 1 at the start of training to 0 at its end, for schedules.
        """
