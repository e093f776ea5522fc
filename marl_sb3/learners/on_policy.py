"""Train one policy by an SB3 on-policy algorithm, with an update at the end of each rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from marl_sb3.acting.actor import Actor, not_finite_refused
from marl_sb3.acting.policy import RolloutPolicy
from marl_sb3.experience.rollout import MaskedDictRolloutBuffer, MaskedRolloutBuffer, RolloutExperience
from marl_sb3.experience.shards import ShardedExperience, ShardedRollout
from marl_sb3.experience.turns import Experience
from marl_sb3.learners.building import build_algorithm, build_for_collecting
from marl_sb3.learners.learner import Learner, LearnerOptions, Pace, Update
from marl_sb3.learners.numeric_faults import check_update, check_weights
from marl_sb3.learners.spec import PolicySpec
from marl_sb3.metrics import Result
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import Processing, process_rows
from marl_sb3.sb3.private import set_progress_remaining
from marl_sb3.storage.parts import Fields, integer


class OnPolicyLearner(Learner):
    """A `Learner` that updates by its algorithm's own `train()` at the end of each rollout.

    Attributes:
        rollouts_per_report: number of rollouts in an iteration, if the run does not set `n_steps`.
    """

    recorded_as: ClassVar[Mapping[str, str]] = {
        **Learner.recorded_as,
        "policy_loss": "train/policy_loss",
        "vf_loss": "train/value_loss",
        "vf_explained_var": "train/explained_variance",
    }
    metric_names: ClassVar[Sequence[str]] = (
        "policy_loss",
        "vf_loss",
        "total_loss",
        "entropy",
        "vf_explained_var",
        *Learner.metric_names,
    )
    rollouts_per_report: ClassVar[int] = 1
    takes_common_steps: ClassVar[bool] = True
    algorithm: OnPolicyAlgorithm
    _sharded: ClassVar[type[ShardedExperience]] = ShardedRollout
    _grad_updates: int = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.buffer.least_minibatch = self.least_minibatch
        self._count_grad_updates()

    @property
    def buffer(self) -> Any:
        """The rollout buffer, a `TurnAwareRollout`."""
        return self.algorithm.rollout_buffer

    @classmethod
    def _build(
        cls, rows: PolicyRows, spec: PolicySpec, seed: int | None, options: LearnerOptions, processing: Processing
    ) -> BaseAlgorithm:
        is_dict = isinstance(rows.group.observation_space, spaces.Dict)
        return build_algorithm(rows, spec, seed, options.device, cls.buffer_class(is_dict=is_dict))

    @classmethod
    def _build_for_shard(cls, rows: PolicyRows, spec: PolicySpec, num_shards: int) -> BaseAlgorithm:
        is_dict = isinstance(rows.group.observation_space, spaces.Dict)
        return build_for_collecting(rows, spec, cls.buffer_class(is_dict=is_dict))

    def _make_actor(self) -> Actor:
        self._require_fit()
        processed = process_rows(self.processing, self.rows, self.algorithm.gamma, self.trained)
        return Actor(self.rows, self._make_policy(), processed, bootstraps=self.trained)

    def _make_experience(self, progress_remaining: Callable[[], float]) -> Experience:
        return RolloutExperience(self.actor, self.algorithm)

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

    def _make_policy(self) -> RolloutPolicy:
        """Return what chooses actions in a rollout."""
        return RolloutPolicy(self.algorithm)

    def _count_grad_updates(self) -> None:
        """Count optimizer steps, which SB3's algorithms do not; not those of a wrapper without hooks."""
        optimizer = self.algorithm.policy.optimizer
        if isinstance(optimizer, th.optim.Optimizer):
            optimizer.register_step_post_hook(self._count_grad_update)

    def _count_grad_update(self, *_: Any) -> None:
        self._grad_updates += 1

    @property
    def pace(self) -> Pace:
        """See `Learner.pace`."""
        n_steps = self.algorithm.n_steps
        return Pace(n_steps * self.rollouts_per_report, n_steps)

    # --- Update ------------------------------------------------------------------------------------------------------

    def begin_update(self, progress_remaining: float) -> Update:
        """See `Learner.begin_update`."""
        set_progress_remaining(self.algorithm, progress_remaining)
        return TrainUpdate(self, self.algorithm.train)

    def finish_update(self) -> Result:
        """Return the metrics that `train()` has recorded; raises if a number is not finite."""
        recorded = dict(self.algorithm.logger.name_to_value)
        self.algorithm.logger.dump()
        metrics = self._metrics(recorded)
        check_update(self.rows, recorded, metrics.get("gradients_global_norm"), self.buffer)
        check_weights(self.policy_id, self.algorithm.policy)
        return metrics

    def _counts(self, recorded: Mapping[str, Any]) -> Result:
        entropy_loss = recorded.get("train/entropy_loss")
        parameters = [p.numel() for p in self.algorithm.policy.parameters() if p.requires_grad]
        return {
            "total_loss": self._total_loss(recorded) if "total_loss" in self.metric_names else None,
            "entropy": None if entropy_loss is None else -entropy_loss,
            "num_grad_updates_lifetime": self.num_grad_updates,
            "num_trainable_parameters": sum(parameters),
            "num_module_steps_trained": self.buffer.samples_drawn if recorded else 0,
        }

    @property
    def least_minibatch(self) -> int:
        """The number of transitions that a minibatch needs; see `TurnAwareRollout.least_minibatch`."""
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
        names = (self.recorded_as["policy_loss"], "train/entropy_loss", "train/value_loss")
        if not recorded.keys() >= set(names):  # before the first update; or an algorithm of the user's own
            return None
        policy_loss, entropy_loss, value_loss = (recorded[name] for name in names)
        return float(policy_loss + self.algorithm.ent_coef * entropy_loss + self.algorithm.vf_coef * value_loss)

    fields: ClassVar[Fields] = {**Learner.fields, "grad_updates": integer("num_grad_updates")}


class TrainUpdate:
    """An update by one call of a function that trains the policy; no call if there are too few transitions."""

    parallel = False

    def __init__(self, learner: OnPolicyLearner, train: Callable[[], None]) -> None:
        self._learner = learner
        self._train = train

    def run(self) -> None:
        """See `Update.run`."""
        if self._learner.buffer.num_transitions >= self._learner.least_transitions:
            with not_finite_refused(self._learner.policy_id, "update"):
                self._train()

    def finish(self) -> Result:
        """See `Update.finish`."""
        return self._learner.finish_update()
