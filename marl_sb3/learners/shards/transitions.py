"""Transitions of off-policy algorithms that shards have collected.

In a round, the shards act with the weights that the policy had at its start. The learner then goes through the steps of
the round in their order, as if it had just taken them: it adds the transitions of a step to the replay buffer, and
updates after every `train_freq` steps.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit

from marl_sb3.experience.replay import Transitions
from marl_sb3.learners.learner import Learner, joined_metrics
from marl_sb3.learners.off_policy import OffPolicyLearner
from marl_sb3.learners.shards.interface import PolicyOrder, PolicyRollout
from marl_sb3.learners.shards.policy import ReceiverBase, ShardPolicyBase
from marl_sb3.metrics import Result
from marl_sb3.sb3.private import after_step, set_progress_remaining
from marl_sb3.storage.parts import Fields, integer
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.observations import map_arrays


class RowTransitions(NamedTuple):
    """`Transitions`, and the indices of the rows that they are of, (n,)."""

    observations: Observations
    next_observations: Observations
    actions: Array
    rewards: Array
    dones: Array
    timeouts: Array
    rows: Array


@dataclass(frozen=True)
class RecordedTransitions:
    """The transitions of a round in one shard.

    Attributes:
        steps: (n,) the step of the round in which each transition ended.
        transitions: in the order in which they ended; None if none did.
        broken_off: (rows,) bool; the rows whose transitions do not follow from those of the round before.
    """

    steps: Array
    transitions: RowTransitions | None
    broken_off: BoolArray


class TransitionRecorder:
    """Takes the place of the replay buffer in a shard: keeps the transitions of one round.

    Attributes:
        actions: an empty array of the dtype in which actions are kept.
    """

    def __init__(self, num_rows: int, action_space: spaces.Space[Any]) -> None:
        wide = action_space.dtype == np.float64  # SB3's buffers keep float32 in its place
        self.actions = np.zeros(0, np.float32 if wide else action_space.dtype)
        self._broken_off = np.zeros(num_rows, dtype=np.bool_)
        self.begin_round()

    def begin_round(self) -> None:
        """Forget the transitions of the round before."""
        self._step = 0
        self._taken: list[tuple[int, RowTransitions]] = []

    def begin_step(self, step: int) -> None:
        """Note the step in which the next transitions end."""
        self._step = step

    def add_transitions(self, added: Transitions, rows: BoolArray) -> None:
        """Keep transitions; see `TransitionReplayBuffer.add_transitions`."""
        self._taken.append((self._step, RowTransitions(*added, np.flatnonzero(rows))))

    def break_off(self, rows: BoolArray) -> None:
        """Note it for the round; see `TransitionReplayBuffer.break_off`."""
        self._broken_off = self._broken_off | rows

    def recorded(self) -> RecordedTransitions:
        """Return what was noted in the round, or before it."""
        broken_off, self._broken_off = self._broken_off, np.zeros_like(self._broken_off)
        if not self._taken:
            return RecordedTransitions(np.zeros(0, dtype=np.int64), None, broken_off)
        steps = [np.full(len(transitions.rewards), step) for step, transitions in self._taken]
        joined = _joined([transitions for _, transitions in self._taken])
        return RecordedTransitions(np.concatenate(steps), joined, broken_off)


def _joined(parts: Sequence[RowTransitions]) -> RowTransitions:
    first = parts[0]
    return RowTransitions(*(_concatenated([part[place] for part in parts]) for place in range(len(first))))


def _concatenated(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return np.concatenate(parts)


class OffPolicyShard(ShardPolicyBase):
    """See `ShardPolicy`; the transitions that ended in a round are sent at its end.

    Args:
        learner: made for the rows of the shard, with a `TransitionRecorder` as its replay buffer.
        num_shards: the random actions before `learning_starts` are shared out to so many shards.
    """

    def __init__(self, learner: Learner, num_shards: int) -> None:
        super().__init__(learner)
        algorithm: Any = learner.algorithm
        algorithm.train_freq = TrainFreq(sys.maxsize, TrainFrequencyUnit.STEP)  # a round is a rollout
        algorithm.learning_starts = math.ceil(algorithm.learning_starts / num_shards)
        self._recorder: TransitionRecorder = algorithm.replay_buffer

    def begin_round(self, order: PolicyOrder, seed: int) -> None:
        """See `ShardPolicy.begin_round`."""
        super().begin_round(order, seed)
        algorithm: Any = self._learner.algorithm
        if hasattr(algorithm, "exploration_rate"):
            algorithm.exploration_rate = order.exploration_rate
        self._recorder.begin_round()
        self.collector.begin_rollout()

    def begin_step(self, step: int) -> None:
        """See `ShardPolicy.begin_step`."""
        self._recorder.begin_step(step)

    def _experience(self) -> RecordedTransitions:
        return self._recorder.recorded()


class ReceivedStep(NamedTuple):
    """A step of all envs that the learner has not gone through yet.

    Attributes:
        agent_steps: actions of the policy's agents.
        progress: from 1 at the start of training to 0 at its end.
        transitions: that ended in the step, in the order of the rows; None if none did.
    """

    agent_steps: int
    progress: float
    transitions: Sequence[RowTransitions]


class TransitionReceiver(ReceiverBase):
    """See `Receiver`: keeps the steps of a round for the learner's update at its end.

    Attributes:
        waiting: the steps of the latest round, before the update.
        agent_steps: actions since the latest update.
    """

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.waiting: deque[ReceivedStep] = deque()
        self.begin_episodes()

    @property
    def buffer(self) -> Any:
        """The replay buffer."""
        return self._algorithm.replay_buffer

    @property
    def steps_left(self) -> int:
        """See `RolloutOwner.steps_left`: an update is due at the end of every round, whatever its length."""
        return 0 if self.waiting or not self.records else sys.maxsize

    def begin_episodes(self) -> None:
        """See `RolloutOwner.begin_episodes`."""
        self.waiting.clear()
        self.agent_steps = self._steps = self._episodes = 0

    def begin_rollout(self) -> None:
        """See `RolloutOwner.begin_rollout`."""

    def receive(self, rollouts: Sequence[PolicyRollout], acted: BoolArray, progress: Sequence[float]) -> None:
        """See `Receiver.receive`."""
        self._take_statistics(rollouts)
        if self.records:
            recorded = [rollout.experience for rollout in rollouts]
            rows = self.rows.num_rows // len(recorded)
            self.buffer.break_off(np.concatenate([each.broken_off for each in recorded]))
            for step, (of_rows, after) in enumerate(zip(acted, progress, strict=True)):
                transitions = [_of_step(each, step, shard * rows) for shard, each in enumerate(recorded)]
                ended = [each for each in transitions if each is not None]
                self.waiting.append(ReceivedStep(int(of_rows.sum()), after, ended))

    def take(self, step: ReceivedStep) -> bool:
        """Go through one step; returns whether an update is due after it."""
        algorithm = self._algorithm
        algorithm.num_timesteps += step.agent_steps
        self.agent_steps += step.agent_steps
        if step.transitions:
            joined = _joined(step.transitions)
            rows = np.isin(np.arange(self.rows.num_rows), joined.rows)
            self.buffer.add_transitions(Transitions._make(joined[:-1]), rows)
            self._episodes += int(joined.dones.sum())
        set_progress_remaining(algorithm, step.progress)
        after_step(algorithm)
        self._steps += 1
        every: TrainFreq = algorithm.train_freq
        taken = self._steps if every.unit is TrainFrequencyUnit.STEP else self._episodes
        return taken >= every.frequency

    def begin_next(self) -> None:
        """Note that an update has been made: the next one is due `train_freq` steps or episodes later."""
        self.agent_steps = self._steps = self._episodes = 0

    # --- State -------------------------------------------------------------------------------------------------------

    # What has been counted since the latest update. Between rounds no step waits.
    fields: ClassVar[Fields] = {
        "steps": integer("_steps"),
        "episodes": integer("_episodes"),
        "agent_steps": integer("agent_steps"),
    }

    def state_was_set(self) -> None:
        """Prepare the policy to act."""
        self._algorithm.policy.set_training_mode(False)
        self.waiting.clear()


def _of_step(recorded: RecordedTransitions, step: int, first_row: int) -> RowTransitions | None:
    """Return the transitions that ended in a step; None if none did. `first_row` is the first row of the shard."""
    if recorded.transitions is None:
        return None
    first, last = np.searchsorted(recorded.steps, [step, step + 1])
    if first == last:
        return None
    parts: list[Any] = [map_arrays(lambda array: array[first:last], part) for part in recorded.transitions]
    return RowTransitions._make([*parts[:-1], first_row + parts[-1]])


class ReceivedJob:
    """See `UpdateJob`: the updates that were due in the steps of a round."""

    parallel = False

    def __init__(self, learner: OffPolicyLearner, receiver: TransitionReceiver) -> None:
        self._learner = learner
        self._receiver = receiver
        self._metrics: list[Result] = []

    def run(self) -> None:
        """See `UpdateJob.run`."""
        waiting, learner = self._receiver.waiting, self._learner
        while waiting:
            if self._receiver.take(waiting.popleft()):
                gradient_steps = learner.gradient_steps
                learner.train(gradient_steps)
                self._metrics.append(learner.finish_update(gradient_steps))
                self._receiver.begin_next()

    def finish(self) -> Result:
        """See `UpdateJob.finish`."""
        return joined_metrics(self._metrics or [self._learner.finish_update(0)])
