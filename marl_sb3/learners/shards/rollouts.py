"""Rollouts of on-policy algorithms that shards have collected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from marl_sb3.learners.shards.interface import PolicyRollout
from marl_sb3.learners.shards.policy import ReceiverBase, ShardPolicyBase
from marl_sb3.storage.parts import Field, Fields
from marl_sb3.types import Array, BoolArray, Observations

_COMPUTED = ("acted", "advantages", "returns")


@dataclass(frozen=True)
class CompleteRollout:
    """A complete rollout of the rows of one shard; (steps, rows, ...) each.

    Attributes:
        observations: as in the rollout buffer.
        columns: name -> array, of everything else in the buffer.
    """

    observations: Observations
    columns: dict[str, Array]


class OnPolicyShard(ShardPolicyBase):
    """See `ShardPolicy`; the rollout is sent when it is complete, with its returns and advantages."""

    def _experience(self) -> CompleteRollout | None:
        if self.collector.steps_left > 0:
            return None
        buffer: Any = self._learner.algorithm.rollout_buffer
        names = (*buffer.of_transition, *_COMPUTED)
        return CompleteRollout(buffer.observations, {name: getattr(buffer, name) for name in names})


class RolloutReceiver(ReceiverBase):
    """See `Receiver`: fills the learner's rollout buffer."""

    _step = 0  # steps since the rollouts began

    @property
    def buffer(self) -> Any:
        """The rollout buffer."""
        return self._algorithm.rollout_buffer

    @property
    def steps_left(self) -> int:
        """See `RolloutOwner.steps_left`."""
        return int(self._algorithm.n_steps) - self._step if self.records else 0

    def begin_episodes(self) -> None:
        """See `RolloutOwner.begin_episodes`."""
        self._step = 0

    def begin_rollout(self) -> None:
        """See `RolloutOwner.begin_rollout`."""
        self._algorithm.policy.set_training_mode(False)
        self.buffer.reset()
        self._step = 0

    def receive(self, rollouts: Sequence[PolicyRollout], acted: BoolArray, progress: Sequence[float]) -> None:
        """See `Receiver.receive`."""
        self._take_statistics(rollouts)
        if not self.records:
            return
        self._step += len(acted)
        self._algorithm.num_timesteps += int(acted.sum())
        complete = [rollout.experience for rollout in rollouts if rollout.experience is not None]
        if complete:
            self._fill(complete)

    def _fill(self, parts: Sequence[CompleteRollout]) -> None:
        """Put the rows of all shards side by side."""
        buffer, first = self.buffer, parts[0]
        for name in first.columns:
            np.concatenate([part.columns[name] for part in parts], axis=1, out=getattr(buffer, name))
        if isinstance(first.observations, dict):
            for key, own in buffer.observations.items():
                np.concatenate([part.observations[key] for part in parts], axis=1, out=own)
        else:
            np.concatenate([part.observations for part in parts], axis=1, out=buffer.observations)
        buffer.pos, buffer.full = buffer.buffer_size, True

    # --- State -------------------------------------------------------------------------------------------------------

    # The steps of the running rollouts, which are in the shards' states. A rollout without a step is begun again: its
    # state is that of a complete one.
    fields: ClassVar[Fields] = {
        "step": Field(
            lambda self: self._step or self._algorithm.n_steps,
            lambda self, state, name: state.integer(name, 0, self._algorithm.n_steps),
            lambda self, step: self._go_on_at(step),
        )
    }

    def _go_on_at(self, step: int) -> None:
        self.begin_rollout()
        self._step = step
