"""Experience that shards collect: what goes to a shard in each round, what comes back, and how learners take it in.

A shard is a fixed share of the envs. In each round, all shards act with the weights that the learner had at its start.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from typing_extensions import override

from marl_sb3.core.experience import Experience, LearnedExperience
from marl_sb3.core.learners.learner import Learner
from marl_sb3.core.off_policy.replay import ReplayExperience, Transitions, joined_transitions
from marl_sb3.core.processing.processing import recent_state
from marl_sb3.core.sb3.private import after_step, set_progress_remaining
from marl_sb3.core.sb3.tensors import read_weights, weights
from marl_sb3.core.sb3.traits import trait
from marl_sb3.core.state.fields import Fields, Stateful, part, scalar
from marl_sb3.core.state.state import State, StateReader, TensorFile
from marl_sb3.doors import ExperienceMaker
from marl_sb3.types import Array, BoolArray


@dataclass(frozen=True)
class PolicyOrder:
    """What a shard needs to know of a policy in a round."""

    weights: Mapping[str, Array]  # by name, as a checkpoint holds them
    statistics: State  # of the processing, as plain data
    exploration_rate: float  # DQN's probability of random actions; 0 for other algorithms
    parts: Sequence[State]  # what `LearnerPart.export_state` returned, of those that the copies of the policy have


@dataclass(frozen=True)
class PolicyRollout:
    """What a policy experienced in one round of one shard."""

    experience: Any  # what `ShardedExperience.receive` takes; None if there is nothing to learn from yet
    statistics: State  # what came into the statistics of its processing in the round, as plain data


# --- In a shard ------------------------------------------------------------------------------------------------------


class ShardPolicy(Stateful):
    """A copy of a policy that acts for the rows of one shard.

    Args:
        copy: the learner of the copy, which only acts.
    """

    fields: ClassVar[Fields] = {
        "actor": part("actor"),
        "experience": part("experience"),
        "num_timesteps": scalar("algorithm.num_timesteps"),
    }

    def __init__(self, copy: Learner) -> None:
        self.actor, self.processing, self.parts = copy.actor, copy.processing, copy.parts
        self.algorithm: Any = copy.algorithm
        # It is seeded in each round: in this process, it may be that of the training, whose draws are its own.
        self.algorithm.action_space = deepcopy(self.algorithm.action_space)
        self.experience = copy.experience  # what it records; None for a policy that is not trained
        self.states = {name: state for each in copy.parts for name, state in each.states.items()}

    @override
    def all_fields(self) -> Fields:
        return {"parts": part("states"), **self.fields} if self.states else self.fields

    def begin_round(self, order: PolicyOrder, seed: int) -> None:
        """Take over weights and statistics, and seed the random actions; called before the rollouts begin."""
        algorithm: Any = self.algorithm
        read_weights(algorithm, TensorFile("weights of the round", order.weights))()
        self.processing.read_state(StateReader(order.statistics, "statistics of the round"))()
        for running in self.processing.statistics.values():
            running.begin_recent()
        self.actor.processing.invalidate()
        for each, of_round in zip(self.parts, order.parts, strict=True):
            each.import_state(of_round)
        algorithm.action_space.seed(seed)
        if trait(algorithm, "exploration_rate") is not None:
            algorithm.exploration_rate = order.exploration_rate
        if isinstance(algorithm, OffPolicyAlgorithm):  # a round is a rollout
            if self.experience is not None:
                self.algorithm.replay_buffer.reset()
                self.experience.begin_rollout()
            self.actor.begin_rollout()

    def finish_round(self) -> PolicyRollout:
        """Return what was recorded in the round."""
        experience = None if self.experience is None else self.experience.recorded()
        return PolicyRollout(experience, recent_state(self.processing.statistics))


@dataclass(frozen=True)
class RecordedTransitions:
    """The transitions of a round in one shard."""

    steps: Array  # (n,) the step of the round in which each transition ended
    transitions: Transitions | None  # in the order in which they ended; None if none did
    broken_off: BoolArray  # (rows,) bool; the rows whose transitions do not follow from those of the round before

    def of_step(self, step: int, first_row: int) -> Transitions | None:
        """Return the transitions that ended in a step; None if none did.

        Args:
            step: of the round.
            first_row: the first row of the shard among those of all shards.
        """
        first, last = np.searchsorted(self.steps, [step, step + 1])
        if self.transitions is None or first == last:
            return None
        ended = self.transitions.at(slice(first, last))
        return ended._replace(rows=first_row + ended.rows)


class TransitionsOfRound:
    """Keeps the transitions of one round, in the place of the replay buffer of a copy. A round is a rollout.

    Args:
        experience: adds them.
    """

    def __init__(self, experience: ReplayExperience) -> None:
        self._experience = experience
        self._broken_off = np.zeros(experience.actor.rows.num_rows, dtype=np.bool_)
        self.reset()

    def reset(self) -> None:
        """Forget the transitions."""
        self._transitions: list[Transitions] = []
        self._steps: list[Array] = []

    def add_transitions(self, added: Transitions) -> None:
        """See `TransitionBuffer.add_transitions`."""
        self._transitions.append(added)
        self._steps.append(np.full(len(added.rows), self._experience.steps - 1))

    def break_off(self, rows: BoolArray) -> None:
        """See `TransitionBuffer.break_off`."""
        self._broken_off = self._broken_off | rows

    def recorded(self) -> RecordedTransitions:
        """Return what was noted in the round, or before it."""
        broken_off, self._broken_off = self._broken_off, np.zeros_like(self._broken_off)
        if not self._transitions:
            return RecordedTransitions(np.zeros(0, dtype=np.int64), None, broken_off)
        return RecordedTransitions(np.concatenate(self._steps), joined_transitions(self._transitions), broken_off)


# --- Beside the learner ----------------------------------------------------------------------------------------------


class ShardedExperience(LearnedExperience):
    """The experience of a learner whose policy acts in shards. This one is of a policy that is not trained.

    Args:
        learner: of the policy.
    """

    records: ClassVar[bool] = False  # whether the policy is trained
    each_round: ClassVar[bool] = False  # whether each round is a rollout

    def __init__(self, learner: Learner) -> None:
        self.rows = learner.actor.rows  # the rows of the policy in all shards
        self.algorithm: Any = learner.algorithm
        self.processing, self._learner = learner.processing, learner

    def order(self) -> PolicyOrder:
        """Return what the shards need to know in the next round."""
        epsilon = float(trait(self.algorithm, "exploration_rate") or 0.0)
        of_parts = [each.export_state() for each in self._learner.parts if each.acts]
        return PolicyOrder(weights(self.algorithm), self.processing.get_state(), epsilon, of_parts)

    def receive(self, rollouts: Sequence[PolicyRollout], acted: BoolArray, progress: Sequence[float]) -> None:
        """Take in one round.

        Args:
            rollouts: of each shard, in the order of the shards.
            acted: (steps, rows) bool; the rows that acted.
            progress: after each step, from 1 at the start of training to 0 at its end, for schedules.
        """
        for rollout in rollouts:
            add_recent(self.processing.statistics, rollout.statistics)

    def due_in(self) -> int:
        """See `Experience.due_in`."""
        return 0

    def begin_episodes(self) -> None:
        """See `Experience.begin_episodes`."""

    def begin_rollout(self) -> None:
        """See `Experience.begin_rollout`."""


class ShardedRollout(ShardedExperience):
    """Fills the learner's rollout buffer with the rollouts of shards.

    The running rollouts are in the shards' states. A rollout without a step is begun again: its state is that of a
    complete one.
    """

    records: ClassVar[bool] = True
    fields: ClassVar[Fields] = {
        "step": scalar("_step", 0, lambda own: own.algorithm.n_steps)._replace(
            get=lambda experience: experience._step or experience.algorithm.n_steps
        )
    }

    _step = 0  # steps since the rollouts began

    @override
    def due_in(self) -> int:
        return int(self.algorithm.n_steps) - self._step

    @override
    def begin_episodes(self) -> None:
        self._step = 0

    @override
    def begin_rollout(self) -> None:
        self.algorithm.policy.set_training_mode(False)
        self.algorithm.rollout_buffer.reset()
        self._step = 0

    def receive(self, rollouts: Sequence[PolicyRollout], acted: BoolArray, progress: Sequence[float]) -> None:
        """See `ShardedExperience.receive`; the rows of all shards are put side by side."""
        super().receive(rollouts, acted, progress)
        self._step += len(acted)
        self.algorithm.num_timesteps += int(acted.sum())
        complete = [rollout.experience for rollout in rollouts if rollout.experience is not None]
        buffer = self.algorithm.rollout_buffer
        for name in complete[0] if complete else ():
            array, given = getattr(buffer, name), [each[name] for each in complete]
            # `breaks` are not there at first, and what parts of learners keep is as wide as what comes.
            if array is None or (not isinstance(array, dict) and array.shape[2:] != given[0].shape[2:]):
                array = np.empty((*buffer.acted.shape, *given[0].shape[2:]), given[0].dtype)
                setattr(buffer, name, array)
            for key in array if isinstance(array, dict) else [...]:  # of an array, the whole
                np.concatenate([part[key] for part in given], axis=1, out=array[key])
        if complete:
            buffer.pos, buffer.full = buffer.buffer_size, True

    def state_was_set(self) -> None:
        """See `Stateful.state_was_set`: the rollouts of which steps were taken are under way."""
        steps = self._step
        self.begin_rollout()
        self._step = steps


class ShardedReplay(ShardedExperience):
    """Keeps the steps of a round for the learner's update at its end.

    The learner then goes through the steps of the round in their order, as if it had just taken them: it adds the
    transitions of a step to the replay buffer, and updates after every `train_freq` steps.

    Attributes:
        steps: since the latest update; the same for `episodes` of agents that ended, and `agent_steps`.
    """

    records = each_round = True
    fields: ClassVar[Fields] = {name: scalar(name) for name in ("steps", "episodes", "agent_steps")}

    def __init__(self, learner: Learner) -> None:
        super().__init__(learner)
        self.begin_episodes()

    def due_in(self) -> int:
        """See `Experience.due_in`: an update is due at the end of every round, whatever its length."""
        return 0 if self._round else sys.maxsize

    @override
    def begin_episodes(self) -> None:
        self._round: list[tuple[int, float, list[Transitions]]] = []  # agent steps, progress, transitions of each step
        self.agent_steps = self.steps = self.episodes = 0

    @override
    def receive(self, rollouts: Sequence[PolicyRollout], acted: BoolArray, progress: Sequence[float]) -> None:
        super().receive(rollouts, acted, progress)
        recorded = [rollout.experience for rollout in rollouts]
        rows = self.rows.num_rows // len(recorded)
        self.algorithm.replay_buffer.break_off(np.concatenate([each.broken_off for each in recorded]))
        for step, (agent_steps, after) in enumerate(zip(acted.sum(axis=1).tolist(), progress, strict=True)):
            of_shards = [each.of_step(step, shard * rows) for shard, each in enumerate(recorded)]
            self._round.append((agent_steps, after, [each for each in of_shards if each is not None]))

    def due_updates(self) -> Iterator[None]:
        """Go through the steps of the round, and pause wherever an update is due."""
        algorithm, steps = self.algorithm, self._round
        self._round = []
        for agent_steps, progress, ended in steps:
            algorithm.num_timesteps += agent_steps
            self.agent_steps += agent_steps
            if ended:
                transitions = joined_transitions(ended)
                algorithm.replay_buffer.add_transitions(transitions)
                self.episodes += int(transitions.dones.sum())
            set_progress_remaining(algorithm, progress)
            after_step(algorithm)
            self.steps += 1
            every: TrainFreq = algorithm.train_freq
            if (self.steps if every.unit is TrainFrequencyUnit.STEP else self.episodes) >= every.frequency:
                yield
                self.agent_steps = self.steps = self.episodes = 0

    @override
    def state_was_set(self) -> None:
        self.algorithm.policy.set_training_mode(False)
        self._round = []


# --- Which of them a learner has --------------------------------------------------------------------------------------


class LearnerShard(ExperienceMaker):
    """The `ExperienceMaker` of learners whose policies act in shards."""

    acts_here = False
    learns_here = True

    def make(self, learner: Learner) -> ShardedExperience:
        """See `ExperienceMaker.make`."""
        replays = isinstance(learner.algorithm, OffPolicyAlgorithm)
        kind = ShardedExperience if not learner.trained else ShardedReplay if replays else ShardedRollout
        return kind(learner)


class CopyShard:
    """The `ExperienceMaker` of the copies of policies that act in one shard.

    They are on the CPU, and their weights come with the order of each round.

    Args:
        num_shards: number of shards.
    """

    acts_here = True
    learns_here = False

    def __init__(self, num_shards: int) -> None:
        self._num_shards = num_shards

    def make(self, learner: Learner) -> Experience | None:
        """See `ExperienceMaker.make`."""
        if not learner.trained:
            return None
        experience: Any = learner.make_experience()
        if isinstance(learner.algorithm, OffPolicyAlgorithm):
            kept = TransitionsOfRound(experience)
            learner.algorithm.replay_buffer, experience.recorded = kept, kept.recorded  # type: ignore[assignment]
        return experience  # type: ignore[no-any-return]

    def prepare_copy(self, algorithm: Any) -> None:
        """See `ExperienceMaker.prepare_copy`; the random actions before `learning_starts` are shared out."""
        algorithm.train_freq = TrainFreq(sys.maxsize, TrainFrequencyUnit.STEP)  # a round is a rollout
        algorithm.learning_starts = math.ceil(algorithm.learning_starts / self._num_shards)


def add_recent(statistics: Mapping[str, Any], recent: Mapping[str, Mapping[str, Any]]) -> None:
    """Combine statistics with those that `recent_state` returned in another process."""
    for name, own in statistics.items():
        moments = recent[name]
        if moments["count"] > 0:
            own.update_from_moments(moments["mean"], moments["var"], moments["count"])
