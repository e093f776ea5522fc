"""What copies of policies in shards, and their receivers, have in common whatever the algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.learners.learner import Collector, Learner
from marl_sb3.learners.shards.interface import PolicyOrder, PolicyRollout
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import Processing
from marl_sb3.processing.normalize import add_recent, recent_state
from marl_sb3.sb3.tensors import read_weights, weights
from marl_sb3.storage.parts import Fields, Stateful, TensorFile, integer, part
from marl_sb3.storage.state import StateReader
from marl_sb3.types import BoolArray
from marl_sb3.vec_env.step import VecStep


def take_order(algorithm: BaseAlgorithm, processing: Processing, order: PolicyOrder) -> None:
    """Put the weights and statistics of an order into a copy of the policy."""
    read_weights(algorithm, TensorFile("weights of the round", order.weights))()
    processing.read_state(StateReader(order.statistics, "statistics of the round"))()
    for own in processing.statistics.values():
        own.begin_recent()


def order_of(algorithm: Any, processing: Processing) -> PolicyOrder:
    """Return the order of a policy as it is now."""
    return PolicyOrder(weights(algorithm), processing.get_state(), float(getattr(algorithm, "exploration_rate", 0.0)))


class ShardPolicyBase(Stateful):
    """The parts of a `ShardPolicy` that are the same for all algorithms.

    Args:
        learner: made for the rows of the shard; it never updates.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    @property
    def collector(self) -> Collector:
        """See `ShardPolicy.collector`."""
        return self._learner.collector

    def begin_round(self, order: PolicyOrder, seed: int) -> None:
        """See `ShardPolicy.begin_round`."""
        take_order(self._learner.algorithm, self._learner.processing, order)
        collector: Any = self._learner.collector
        collector.processing.look_again()
        self._learner.algorithm.action_space.seed(seed)

    def begin_step(self, step: int) -> None:
        """See `ShardPolicy.begin_step`."""

    def finish_round(self) -> PolicyRollout:
        """See `ShardPolicy.finish_round`."""
        experience = self._experience() if self._learner.trained else None
        return PolicyRollout(experience, recent_state(self._learner.processing.statistics))

    def _experience(self) -> Any:
        """Return what the receiver takes."""
        raise NotImplementedError

    fields: ClassVar[Fields] = {
        "rollout": part("collector"),
        "num_timesteps": integer("_learner.algorithm.num_timesteps"),
    }


class ReceiverBase(Stateful):
    """The parts of a `Receiver` that are the same for all algorithms.

    Args:
        learner: the learner that the experience is for. Its own collector answers what depends on the policy alone.
    """

    rows: PolicyRows
    records: bool

    def __init__(self, learner: Learner) -> None:
        self._own = learner.collector
        self._algorithm: Any = learner.algorithm
        self._processing = learner.processing
        self.rows, self.records = self._own.rows, self._own.records

    @property
    def takes_masks(self) -> bool:
        """See `RolloutOwner.takes_masks`."""
        return self._own.takes_masks

    def masks(self, step: VecStep) -> BoolArray | None:
        """See `RolloutOwner.masks`."""
        return self._own.masks(step)

    def order(self) -> PolicyOrder:
        """See `Receiver.order`."""
        return order_of(self._algorithm, self._processing)

    def _take_statistics(self, rollouts: Sequence[PolicyRollout]) -> None:
        for rollout in rollouts:
            add_recent(self._processing.statistics, rollout.statistics)
