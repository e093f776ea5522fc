"""Train one policy by its SB3 off-policy algorithm: updates from a replay buffer, at the algorithm's own cadence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from marl_sb3.errors import CheckpointError
from marl_sb3.experience.replay import TransitionDictReplayBuffer, TransitionReplayBuffer, read_resized
from marl_sb3.learners.building import build_with_replay, stored_space
from marl_sb3.learners.learner import Learner, LearnerOptions, Pace, UpdateJob
from marl_sb3.learners.numeric_faults import check_replay_update, policy_in_errors
from marl_sb3.learners.off_policy_collector import OffPolicyCollector
from marl_sb3.learners.spec import PolicySpec
from marl_sb3.metrics import Result
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import Processing, process_rows
from marl_sb3.sb3.files import normalize_minibatches
from marl_sb3.sb3.optimizers import num_optimized
from marl_sb3.sb3.private import OFF_POLICY_COUNTS, num_updates, set_progress_remaining
from marl_sb3.sb3.tensors import Arrays
from marl_sb3.storage.parts import Commit, Fields, SavedPart, computed, in_order

_log = logging.getLogger(__name__)

_ENV_STEPS_PER_REPORT = 1000


class OffPolicyLearner(Learner):
    """An `Learner` that updates by its algorithm's own `train()` from a replay buffer.

    An update is due after each rollout of `train_freq` steps or episodes. Until `learning_starts` agent steps have been
    taken, and until the replay buffer has a line to draw from, updates do nothing.

    Attributes:
        make_job: makes the job of an update.
    """

    metric_names: ClassVar[Sequence[str]] = ("replay_buffer_size", *Learner.metric_names)
    algorithm: OffPolicyAlgorithm
    collector: OffPolicyCollector

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._num_parameters = num_optimized(self.algorithm)
        self.make_job: Callable[[OffPolicyLearner], UpdateJob] = ReplayJob

    @classmethod
    def _build(
        cls, rows: PolicyRows, spec: PolicySpec, seed: int | None, options: LearnerOptions, processing: Processing
    ) -> BaseAlgorithm:
        return build_with_replay(rows, spec, seed, options.device, processing, options.goal_rewards)

    def _make_collector(self, progress_remaining: Callable[[], float]) -> OffPolicyCollector:
        algorithm, processing = self.algorithm, self.processing
        processed = process_rows(processing, self.rows, algorithm.gamma, self.trained, late=True)
        normalize_minibatches(algorithm, processing)
        stored = stored_space(processing, algorithm)
        return OffPolicyCollector(self.rows, algorithm, processed, self.trained, progress_remaining, stored)

    @property
    def pace(self) -> Pace:
        """See `Learner.pace`."""
        every: Any = self.algorithm.train_freq
        return Pace(max(_ENV_STEPS_PER_REPORT // self.rows.num_envs, int(every.frequency), 1))

    # --- Update ------------------------------------------------------------------------------------------------------

    def begin_update(self, progress_remaining: float) -> UpdateJob:
        """See `Learner.begin_update`."""
        set_progress_remaining(self.algorithm, progress_remaining)
        return self.make_job(self)

    @property
    def gradient_steps(self) -> int:
        """The gradient steps of an update that is begun now; -1 means as many as agent steps in the rollout."""
        algorithm = self.algorithm
        if algorithm.num_timesteps <= algorithm.learning_starts or not self.collector.buffer.can_sample:
            return 0
        return algorithm.gradient_steps if algorithm.gradient_steps >= 0 else self.collector.agent_steps

    def train(self, gradient_steps: int) -> None:
        """Take gradient steps by the algorithm's `train()`; none as long as the policy is not to learn yet."""
        if gradient_steps > 0:
            with policy_in_errors(self.policy_id, "update"):
                self.algorithm.train(gradient_steps=gradient_steps, batch_size=self.algorithm.batch_size)

    def finish_update(self, gradient_steps: int) -> Result:
        """Read what `train()` has recorded, and look for numbers that are not finite."""
        logger = self.algorithm.logger
        recorded = dict(logger.name_to_value)
        logger.dump()
        if gradient_steps:
            check_replay_update(self.policy_id, recorded, self.collector.buffer)
        return {**self._metrics(recorded), "num_module_steps_trained": gradient_steps * self.algorithm.batch_size}

    def _counts(self, recorded: Mapping[str, Any]) -> Result:
        return {
            "replay_buffer_size": self.collector.buffer.num_transitions,
            "num_grad_updates_lifetime": num_updates(self.algorithm),
            "num_trainable_parameters": self._num_parameters,
            "num_module_steps_trained": 0,
        }

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {
        **Learner.fields,
        "replay": computed(
            lambda self: self.collector.buffer.get_state() if self.trained else None,
            lambda self, saved, name: self._read_replay(saved) if self.trained else saved.null(name),
        ),
        **OFF_POLICY_COUNTS,
    }

    def get_tensors(self) -> Mapping[str, Arrays]:
        """See `TensorPart.get_tensors`; the replay buffer is not copied."""
        of_policy = super().get_tensors()
        return {**of_policy, "replay": self.collector.buffer.tensors()} if self.trained else of_policy

    def _read_replay(self, saved: SavedPart) -> Commit:
        buffer, state = self.collector.buffer, saved.fields("replay")
        if "replay" not in saved.files:
            raise CheckpointError(f"{saved.where}: the file of the replay buffer is missing")
        if saved.num_envs == self.rows.num_envs:
            return buffer.read_state(state, saved.files["replay"])
        if isinstance(buffer, TransitionReplayBuffer | TransitionDictReplayBuffer):
            rows = saved.num_envs * len(self.rows.agents)
            return in_order([buffer.reset, read_resized(buffer, state, saved.files["replay"], rows)])
        return in_order([buffer.reset, lambda: self._warn_of_empty_buffer(saved.num_envs)])

    def _warn_of_empty_buffer(self, num_envs: int) -> None:
        _log.warning(
            "inexact: policy %r: the replay buffer begins anew: it holds the transitions of %d envs one after the "
            "other, and the checkpoint has %d",
            self.policy_id,
            self.rows.num_envs,
            num_envs,
        )


class ReplayJob:
    """An update by one call of the algorithm's `train()`; its gradient steps are counted when it is made."""

    parallel = False

    def __init__(self, learner: OffPolicyLearner) -> None:
        self._learner = learner
        self._gradient_steps = learner.gradient_steps

    def run(self) -> None:
        """See `UpdateJob.run`."""
        self._learner.train(self._gradient_steps)

    def finish(self) -> Result:
        """See `UpdateJob.finish`."""
        return self._learner.finish_update(self._gradient_steps)
