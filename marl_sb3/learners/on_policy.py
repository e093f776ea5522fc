"""Train one policy by an SB3 on-policy algorithm, with an update at the end of each rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from marl_sb3.learners.buffers.rollout import MaskedDictRolloutBuffer, MaskedRolloutBuffer
from marl_sb3.learners.interface import Pace, UpdateJob
from marl_sb3.learners.numeric_faults import check_update, check_weights, policy_in_errors
from marl_sb3.learners.on_policy_actor import ForwardPassDecider, OnPolicyActor, OnPolicyDecider
from marl_sb3.learners.on_policy_collector import OnPolicyCollector
from marl_sb3.learners.sb3.private import num_updates, progress_remaining, set_num_updates, set_progress_remaining
from marl_sb3.learners.sb3.tensors import (
    Arrays,
    optimizer_arrays,
    optimizer_settings,
    read_optimizers,
    read_weights,
    weights,
)
from marl_sb3.metrics import Result
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import Processing, process_rows
from marl_sb3.storage.parts import SavedPart, TensorFile
from marl_sb3.storage.rng import read_space_state, space_state
from marl_sb3.storage.state import State, StateReader


class OnPolicyLearner:
    """A `Learner` that updates by its algorithm's own `train()`.

    Args:
        algorithm: its SB3 algorithm, made by `build_algorithm`.
        trained: whether the policy is trained; if not, it only acts.
        processing: of its observations, rewards and actions.

    Attributes:
        recorded_as: metric -> the name under which the algorithm's `train()` records it in SB3's logger.
        metric_names: see `Learner`.
        rollouts_per_report: number of rollouts in an iteration, if the run does not set `n_steps`.
        takes_common_steps: whether the `n_steps` of the run is the length of its rollouts, if its spec does not set it.
    """

    recorded_as: ClassVar[Mapping[str, str]] = {
        "policy_loss": "train/policy_loss",
        "vf_loss": "train/value_loss",
        "vf_explained_var": "train/explained_variance",
        "curr_lr": "train/learning_rate",
    }
    metric_names: ClassVar[Sequence[str]] = (
        "policy_loss",
        "vf_loss",
        "total_loss",
        "entropy",
        "vf_explained_var",
        "curr_lr",
        "num_grad_updates_lifetime",
        "num_trainable_parameters",
        "num_module_steps_trained",
    )
    rollouts_per_report: ClassVar[int] = 1
    takes_common_steps: ClassVar[bool] = True

    def __init__(self, rows: PolicyRows, algorithm: OnPolicyAlgorithm, trained: bool, processing: Processing) -> None:
        self.policy_id = rows.policy_id
        self.algorithm = algorithm
        self.trained = trained
        self.rows = rows
        self._require_fit()
        algorithm.set_logger(Logger(None, []))
        self._grad_updates = 0
        self._count_grad_updates()
        actor = OnPolicyActor(rows, algorithm, self._make_decider())
        self.processing = processing
        processed = process_rows(processing, rows, algorithm.gamma, trained)
        self.collector = OnPolicyCollector(actor, algorithm, processed, trained)
        self.collector.buffer.least_minibatch = self.least_minibatch

    @staticmethod
    def buffer_class(*, is_dict: bool) -> type[RolloutBuffer]:
        """Return the class of the rollout buffer.

        Args:
            is_dict: whether the observations are of a `Dict` space.
        """
        return MaskedDictRolloutBuffer if is_dict else MaskedRolloutBuffer

    def _require_fit(self) -> None:
        """Refuse settings and spaces that the algorithm takes and then fails on.

        Raises:
            ConfigError: names the policy and the setting.
        """

    def _make_decider(self) -> OnPolicyDecider:
        """Return the decider that calls the algorithm in a rollout."""
        return ForwardPassDecider(self.algorithm)

    def _count_grad_updates(self) -> None:
        """Count optimizer steps, which SB3's algorithms do not."""
        self.algorithm.policy.optimizer.register_step_post_hook(self._count_grad_update)

    def _count_grad_update(self, *_: Any) -> None:
        self._grad_updates += 1

    @property
    def pace(self) -> Pace:
        """See `Learner.pace`."""
        n_steps = self.algorithm.n_steps
        return Pace(n_steps * self.rollouts_per_report, n_steps)

    def due_in(self) -> int:
        """See `Learner.due_in`: at the end of the rollout."""
        return self.collector.steps_left

    # --- Update ------------------------------------------------------------------------------------------------------

    def begin_update(self, progress_remaining: float) -> UpdateJob:
        """See `Learner.begin_update`."""
        set_progress_remaining(self.algorithm, progress_remaining)
        return TrainJob(self, self.algorithm.train)

    def finish_update(self) -> Result:
        """Return the metrics that `train()` has recorded; raises if a number is not finite."""
        recorded = dict(self.algorithm.logger.name_to_value)
        self.algorithm.logger.dump()
        metrics = self._metrics(recorded)
        check_update(self.rows, recorded, metrics.get("gradients_global_norm"), self.collector.buffer)
        check_weights(self.policy_id, self.algorithm.policy)
        return metrics

    def metrics_before_training(self) -> Result:
        """See `Learner.metrics_before_training`."""
        return self._metrics({})

    def _metrics(self, recorded: Mapping[str, Any]) -> Result:
        entropy_loss = recorded.get("train/entropy_loss")
        parameters = [p.numel() for p in self.algorithm.policy.parameters() if p.requires_grad]
        values = {
            **{name: recorded.get(key) for name, key in self.recorded_as.items()},
            "total_loss": self._total_loss(recorded) if "total_loss" in self.metric_names else None,
            "entropy": None if entropy_loss is None else -entropy_loss,
            "num_grad_updates_lifetime": self.num_grad_updates,
            "num_trainable_parameters": sum(parameters),
            "num_module_steps_trained": self.collector.buffer.samples_drawn if recorded else 0,
            **self._more_metrics(recorded),
        }
        return {name: values[name] for name in self.metric_names}

    def _more_metrics(self, recorded: Mapping[str, Any]) -> Result:
        """Return metrics that only this algorithm has, besides those that it records."""
        return {}

    @property
    def least_minibatch(self) -> int:
        """The number of transitions that a minibatch needs; see `TransitionsOnly.least_minibatch`."""
        return 1

    @property
    def least_transitions(self) -> int:
        """The number of transitions that an update needs: SB3 divides by the standard deviation of the advantages."""
        return 2 if getattr(self.algorithm, "normalize_advantage", False) else 1

    @property
    def num_grad_updates(self) -> int:
        """Optimizer steps taken."""
        return self._grad_updates

    @num_grad_updates.setter
    def num_grad_updates(self, count: int) -> None:
        self._grad_updates = count

    def _total_loss(self, recorded: Mapping[str, Any]) -> float | None:
        """Return the mean loss over minibatches; SB3's own `train/loss` is that of the last minibatch."""
        policy_loss = recorded.get(self.recorded_as["policy_loss"])
        if policy_loss is None:
            return None
        algorithm = self.algorithm
        return float(
            policy_loss
            + algorithm.ent_coef * recorded["train/entropy_loss"]
            + algorithm.vf_coef * recorded["train/value_loss"]
        )

    # --- State -------------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """See `Part.get_state`."""
        algorithm = self.algorithm
        return {
            "rollout": self.collector.get_state(),
            "processing": self.processing.get_state(),
            "num_timesteps": algorithm.num_timesteps,
            "n_updates": num_updates(algorithm),
            "grad_updates": self.num_grad_updates,
            "progress_remaining": progress_remaining(algorithm),
            "optimizers": optimizer_settings(algorithm),
            "observation_space": space_state(algorithm.observation_space),
            "action_space": space_state(algorithm.action_space),
        }

    def get_tensors(self) -> Mapping[str, Arrays]:
        """See `TensorPart.get_tensors`: the weights and the optimizers' state."""
        return {"policy": weights(self.algorithm), "optimizer": optimizer_arrays(self.algorithm)}

    def read_state(self, saved: SavedPart) -> Callable[[], None]:
        """See `Part.read_state`; the saved rollout is ignored if the number of envs has changed."""
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
            return self.collector.begin_episodes
        return self.collector.read_state(saved.state.fields("rollout"))

    def _read_counts(self, state: StateReader) -> Callable[[], None]:
        num_timesteps, grad_updates = state.integer("num_timesteps"), state.integer("grad_updates")
        n_updates, progress = state.integer("n_updates"), state.number("progress_remaining")

        def put_back() -> None:
            self.algorithm.num_timesteps, self.num_grad_updates = num_timesteps, grad_updates
            set_num_updates(self.algorithm, n_updates)
            set_progress_remaining(self.algorithm, progress)

        return put_back

    def read_weights(self, files: Mapping[str, TensorFile]) -> Callable[[], None]:
        """See `Learner.read_weights`."""
        return read_weights(self.algorithm, files["policy"])


class TrainJob:
    """An update by one call of a function that trains the policy; no call if there are too few transitions."""

    parallel = False

    def __init__(self, learner: OnPolicyLearner, train: Callable[[], None]) -> None:
        self._learner = learner
        self._train = train

    def run(self) -> None:
        """See `UpdateJob.run`."""
        if self._learner.collector.buffer.num_transitions >= self._learner.least_transitions:
            with policy_in_errors(self._learner.policy_id, "update"):
                self._train()

    def finish(self) -> Result:
        """See `UpdateJob.finish`."""
        return self._learner.finish_update()
