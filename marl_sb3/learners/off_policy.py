"""Train one policy by its SB3 off-policy algorithm: updates from a replay buffer, at the algorithm's own cadence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from stable_baselines3.common.logger import Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from marl_sb3.errors import CheckpointError
from marl_sb3.learners.buffers.replay import TransitionDictReplayBuffer, TransitionReplayBuffer
from marl_sb3.learners.buffers.resized import read_resized
from marl_sb3.learners.interface import Pace, UpdateJob
from marl_sb3.learners.numeric_faults import check_replay_update
from marl_sb3.learners.off_policy_collector import OffPolicyCollector
from marl_sb3.learners.processed import stored_space
from marl_sb3.learners.sb3.private import (
    num_steps,
    num_updates,
    progress_remaining,
    set_num_steps,
    set_num_updates,
    set_progress_remaining,
)
from marl_sb3.learners.sb3.tensors import (
    Arrays,
    num_optimized,
    optimizer_arrays,
    optimizer_settings,
    read_optimizers,
    read_weights,
    weights,
)
from marl_sb3.learners.sb3.vec_normalize import normalize_minibatches
from marl_sb3.metrics import Result
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import Processing, process_rows
from marl_sb3.storage.parts import SavedPart, TensorFile
from marl_sb3.storage.rng import read_space_state, space_state
from marl_sb3.storage.state import State, StateReader

_log = logging.getLogger(__name__)

_ENV_STEPS_PER_REPORT = 1000


class OffPolicyLearner:
    """A `Learner` that updates by its algorithm's own `train()`.

    An update is due after each rollout of `train_freq` steps or episodes. Until `learning_starts` agent steps have been
    taken, and until the replay buffer has a line to draw from, updates do nothing.

    Args:
        algorithm: its SB3 algorithm, made by `build_algorithm`.
        trained: whether the policy is trained; if not, it only acts.
        progress_remaining: see `OffPolicyCollector`.

    Attributes:
        recorded_as: metric -> the name under which the algorithm's `train()` records it in SB3's logger.
        metric_names: see `Learner`.
        takes_common_steps: whether the `n_steps` of the run is its own setting: SB3's means n-step returns here.
        make_job: makes the job of an update.
    """

    recorded_as: ClassVar[Mapping[str, str]] = {"curr_lr": "train/learning_rate"}
    metric_names: ClassVar[Sequence[str]] = (
        "replay_buffer_size",
        "curr_lr",
        "num_grad_updates_lifetime",
        "num_trainable_parameters",
        "num_module_steps_trained",
    )
    takes_common_steps: ClassVar[bool] = False

    def __init__(
        self,
        rows: PolicyRows,
        algorithm: OffPolicyAlgorithm,
        trained: bool,
        processing: Processing,
        progress_remaining: Callable[[], float],
    ) -> None:
        self.policy_id = rows.policy_id
        self.algorithm = algorithm
        self.trained = trained
        self.rows = rows
        algorithm.set_logger(Logger(None, []))
        self._num_parameters = num_optimized(algorithm)
        self.processing = processing
        processed = process_rows(processing, rows, algorithm.gamma, trained, late=True)
        normalize_minibatches(algorithm, processing)
        stored = stored_space(processing, algorithm)
        self.collector = OffPolicyCollector(rows, algorithm, processed, trained, progress_remaining, stored)
        self.make_job: Callable[[OffPolicyLearner], UpdateJob] = ReplayJob

    @property
    def pace(self) -> Pace:
        """See `Learner.pace`."""
        every: Any = self.algorithm.train_freq
        return Pace(max(_ENV_STEPS_PER_REPORT // self.rows.num_envs, int(every.frequency), 1))

    def due_in(self) -> int:
        """See `Learner.due_in`: at the end of the rollout, and at most a step if that is the end of an episode."""
        return self.collector.steps_left

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

    def finish_update(self, gradient_steps: int) -> Result:
        """Read what `train()` has recorded, and look for numbers that are not finite."""
        logger = self.algorithm.logger
        recorded = dict(logger.name_to_value)
        logger.dump()
        if gradient_steps:
            check_replay_update(self.policy_id, recorded, self.collector.buffer)
        return self._metrics(recorded, gradient_steps)

    def metrics_before_training(self) -> Result:
        """See `Learner.metrics_before_training`."""
        return self._metrics({}, 0)

    def _metrics(self, recorded: Mapping[str, Any], gradient_steps: int) -> Result:
        values = {
            **{name: recorded.get(key) for name, key in self.recorded_as.items()},
            "replay_buffer_size": self.collector.buffer.num_transitions,
            "num_grad_updates_lifetime": num_updates(self.algorithm),
            "num_trainable_parameters": self._num_parameters,
            "num_module_steps_trained": gradient_steps * self.algorithm.batch_size,
            **self._more_metrics(),
        }
        return {name: values[name] for name in self.metric_names}

    def _more_metrics(self) -> Result:
        """Return metrics that only this algorithm has, besides those that it records."""
        return {}

    # --- State -------------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """See `Part.get_state`."""
        algorithm = self.algorithm
        return {
            "rollout": self.collector.get_state(),
            "processing": self.processing.get_state(),
            "replay": self.collector.buffer.get_state() if self.trained else None,
            "num_timesteps": algorithm.num_timesteps,
            "n_updates": num_updates(algorithm),
            "steps": num_steps(algorithm),
            "exploration_rate": float(getattr(algorithm, "exploration_rate", 0.0)),
            "progress_remaining": progress_remaining(algorithm),
            "optimizers": optimizer_settings(algorithm),
            "observation_space": space_state(algorithm.observation_space),
            "action_space": space_state(algorithm.action_space),
        }

    def get_tensors(self) -> Mapping[str, Arrays]:
        """See `TensorPart.get_tensors`; the replay buffer is not copied."""
        of_policy = {"policy": weights(self.algorithm), "optimizer": optimizer_arrays(self.algorithm)}
        return {**of_policy, "replay": self.collector.buffer.tensors()} if self.trained else of_policy

    def read_state(self, saved: SavedPart) -> Callable[[], None]:
        """See `Part.read_state`; with another number of envs, transitions that are not over are lost."""
        algorithm, state = self.algorithm, saved.state
        setters = [
            self.read_weights(saved.files),
            read_optimizers(algorithm, saved.files["optimizer"], state.value("optimizers")),
            self._read_rollout(saved),
            self.processing.read_state(state.fields("processing")),
            read_space_state(algorithm.observation_space, state, "observation_space"),
            read_space_state(algorithm.action_space, state, "action_space"),
            self._read_counts(state),
        ]

        def put_back() -> None:
            for put in setters:
                put()

        return put_back

    def _read_rollout(self, saved: SavedPart) -> Callable[[], None]:
        if saved.num_envs != self.rows.num_envs:
            return self._read_of_other_envs(saved)
        put_rollout = self.collector.read_state(saved.state.fields("rollout"))
        if not self.trained:
            return put_rollout
        if "replay" not in saved.files:
            raise CheckpointError(f"{saved.state.where}: the file of the replay buffer is missing")
        put_replay = self.collector.buffer.read_state(saved.state.fields("replay"), saved.files["replay"])

        def put_back() -> None:
            put_rollout()
            put_replay()

        return put_back

    def _read_of_other_envs(self, saved: SavedPart) -> Callable[[], None]:
        """Keep the transitions of another number of envs, if the buffer holds them in any order; new episodes begin."""
        buffer, rows = self.collector.buffer, saved.num_envs * len(self.rows.agents)
        put: Callable[[], None] | None = None
        if isinstance(buffer, TransitionReplayBuffer | TransitionDictReplayBuffer) and "replay" in saved.files:
            put = read_resized(buffer, saved.state.fields("replay"), saved.files["replay"], rows)

        def put_back() -> None:
            self.collector.begin_episodes()
            buffer.reset()
            if put is not None:
                put()
            elif self.trained:
                _log.warning(
                    "inexact: policy %r: the replay buffer begins anew: it holds the transitions of %d envs one after "
                    "the other, and the checkpoint has %d",
                    self.policy_id,
                    self.rows.num_envs,
                    saved.num_envs,
                )

        return put_back

    def _read_counts(self, state: StateReader) -> Callable[[], None]:
        num_timesteps, n_updates, steps = (state.integer(name) for name in ("num_timesteps", "n_updates", "steps"))
        epsilon, progress = state.number("exploration_rate", 0.0, 1.0), state.number("progress_remaining")

        def put_back() -> None:
            algorithm: Any = self.algorithm
            algorithm.num_timesteps = num_timesteps
            set_num_updates(algorithm, n_updates)
            set_num_steps(algorithm, steps)
            set_progress_remaining(algorithm, progress)
            if hasattr(algorithm, "exploration_rate"):
                algorithm.exploration_rate = epsilon

        return put_back

    def read_weights(self, files: Mapping[str, TensorFile]) -> Callable[[], None]:
        """See `Learner.read_weights`."""
        return read_weights(self.algorithm, files["policy"])


class ReplayJob:
    """An update by one call of the algorithm's `train()`; no call as long as it is not to learn yet."""

    parallel = False

    def __init__(self, learner: OffPolicyLearner) -> None:
        self._learner = learner
        self._gradient_steps = learner.gradient_steps

    def run(self) -> None:
        """See `UpdateJob.run`."""
        if self._gradient_steps > 0:
            algorithm = self._learner.algorithm
            algorithm.train(gradient_steps=self._gradient_steps, batch_size=algorithm.batch_size)

    def finish(self) -> Result:
        """See `UpdateJob.finish`."""
        return self._learner.finish_update(self._gradient_steps)
