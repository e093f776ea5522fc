"""Train one policy by its SB3 off-policy algorithm: updates from a replay buffer, at the algorithm's own cadence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from typing_extensions import override

from marl_sb3.core.acting import Actor, ExploringPolicy, RowNoise, not_finite_refused
from marl_sb3.core.experience import Experience
from marl_sb3.core.learners import (
    Learner,
    LearnerOptions,
    Pace,
    PolicySpec,
    Update,
    build,
    check_replay_update,
    joined_metrics,
    mention_flat_images,
    stored_space,
)
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.metrics import Result
from marl_sb3.core.off_policy.replay import (
    ReplayExperience,
    TransitionDictReplayBuffer,
    TransitionReplayBuffer,
    read_resized,
)
from marl_sb3.core.off_policy.replay_settings import check_replay, replay_buffer
from marl_sb3.core.processing import Processing, process_rows
from marl_sb3.core.sb3 import (
    OFF_POLICY_COUNTS,
    Arrays,
    check_spaces,
    normalize_minibatches,
    num_updates,
    optimized_parameters,
)
from marl_sb3.core.state import Commit, Field, Fields, SavedPart, in_order
from marl_sb3.errors import CheckpointError

_log = logging.getLogger(__name__)

_ENV_STEPS_PER_REPORT = 1000


class OffPolicyLearner(Learner):
    """A `Learner` that updates by its algorithm's own `train()` from a replay buffer.

    An update is due after each rollout of `train_freq` steps or episodes. Until `learning_starts` agent steps have been
    taken, and until the replay buffer has a line to draw from, updates do nothing.
    """

    algorithm: OffPolicyAlgorithm
    takes_parts = ("replay_data",)
    refusal = ("it has no rollouts", "replay_data")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._num_parameters = sum(parameter.numel() for parameter in optimized_parameters(self.algorithm))

    @property
    def buffer(self) -> Any:
        """The replay buffer."""
        return self.algorithm.replay_buffer

    @classmethod
    def _build(
        cls, rows: PolicyRows, spec: PolicySpec, seed: int | None, options: LearnerOptions, processing: Processing
    ) -> BaseAlgorithm:
        if not options.experience.learns_here:
            copy: Any = build(rows, spec, processing, options.device)
            copy.replay_buffer = None
            options.experience.prepare_copy(copy)
            return copy  # type: ignore[no-any-return]
        check_spaces(rows)
        check_replay(rows, spec, processing)
        mention_flat_images(rows, spec)
        algorithm: Any = build(rows, spec, processing, options.device, seed)
        assert options.goal_rewards is not None
        stored = stored_space(processing, algorithm)
        algorithm.replay_buffer = replay_buffer(rows, spec, algorithm, stored, options.goal_rewards)
        return algorithm  # type: ignore[no-any-return]

    def _make_actor(self) -> Actor:
        algorithm, noise = self.algorithm, self.algorithm.action_noise
        processed = process_rows(self.processing, self.rows, algorithm.gamma, self.trained, late=True)
        normalize_minibatches(algorithm, self.processing)
        explores = self.trained and isinstance(noise, ActionNoise)
        row_noise = RowNoise(noise, self.rows.num_rows) if explores else None  # type: ignore[arg-type]
        return Actor(self.rows, ExploringPolicy(algorithm, row_noise, warms_up=self.trained), processed)

    def make_experience(self) -> Experience:
        """See `Learner.make_experience`."""
        return ReplayExperience(self.actor, stored_space(self.processing, self.algorithm), self.progress_remaining)

    @property
    @override
    def pace(self) -> Pace:
        every: Any = self.algorithm.train_freq
        return Pace(max(_ENV_STEPS_PER_REPORT // self.rows.num_envs, int(every.frequency), 1))

    # --- Update ------------------------------------------------------------------------------------------------------

    @override
    def begin_update(self, progress_remaining: float) -> Update:
        self.follow_schedules(progress_remaining)
        metrics: list[Result] = []

        def run() -> None:
            for _ in self.experience.due_updates():
                metrics.append(self._train())

        return Update(run, lambda: joined_metrics(metrics or [self._finish_update(0)]))

    def _train(self) -> Result:
        """Update by the algorithm's `train()`, or do nothing if the policy is not to learn yet.

        Returns:
            The metrics.

        Raises:
            NumericError: a loss or a number in the replay buffer is not finite.
        """
        algorithm, experience = self.algorithm, self.experience
        gradient_steps = 0
        if algorithm.num_timesteps > algorithm.learning_starts and self.buffer.can_sample and experience is not None:
            # -1: as many as agent steps in the rollout
            gradient_steps = algorithm.gradient_steps if algorithm.gradient_steps >= 0 else experience.agent_steps
        if gradient_steps > 0 and num_updates(algorithm) == 0:
            gradient_steps += sum(each.first_updates for each in self.parts)
        if gradient_steps > 0:
            with not_finite_refused(self.policy_id, "update"):
                algorithm.train(gradient_steps=gradient_steps, batch_size=algorithm.batch_size)
        return self._finish_update(gradient_steps)

    def _finish_update(self, gradient_steps: int) -> Result:
        """Read what `train()` has recorded, and look for numbers that are not finite."""
        logger = self.algorithm.logger
        recorded = dict(logger.name_to_value)
        logger.dump()
        if gradient_steps:
            check_replay_update(self.policy_id, recorded, self.buffer)
        return {**self.metrics(recorded), "num_module_steps_trained": gradient_steps * self.algorithm.batch_size}

    def _computed(self, recorded: Mapping[str, Any]) -> Result:
        return {
            "exploration_rate": getattr(self.algorithm, "exploration_rate", None),
            "replay_buffer_size": self.buffer.num_transitions,
            "num_grad_updates_lifetime": num_updates(self.algorithm),
            "num_trainable_parameters": self._num_parameters,
            "num_module_steps_trained": 0,
        }

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {
        **Learner.fields,
        "replay": Field(
            lambda self: self.buffer.get_state() if self.trained else None,
            lambda self, saved, name: self._read_replay(saved) if self.trained else saved.null(name),
        ),
        **OFF_POLICY_COUNTS,
    }

    def get_tensors(self) -> Mapping[str, Arrays]:
        """See `Learner.get_tensors`; the replay buffer is not copied."""
        of_policy = super().get_tensors()
        return {**of_policy, "replay": self.buffer.tensors()} if self.trained else of_policy

    def _read_replay(self, saved: SavedPart) -> Commit:
        buffer, state = self.buffer, saved.fields("replay")
        if "replay" not in saved.files:
            raise CheckpointError(f"{saved.where}: the file of the replay buffer is missing")
        if saved.num_envs == self.rows.num_envs:
            commit: Commit = buffer.read_state(state, saved.files["replay"])
            return commit
        if isinstance(buffer, TransitionReplayBuffer | TransitionDictReplayBuffer):
            rows = saved.num_envs * len(self.rows.agents)
            return read_resized(buffer, state, saved.files["replay"], rows)
        words = (
            f"inexact: policy {self.policy_id!r}: the replay buffer begins anew: it holds the transitions of "
            f"{self.rows.num_envs} envs one after the other, and the checkpoint has {saved.num_envs}"
        )
        return in_order([buffer.reset, lambda: _log.warning("%s", words)])
