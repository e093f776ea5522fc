"""Train one policy by an SB3 on-policy algorithm, with an update at the end of each rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from typing_extensions import override

from marl_sb3.core.acting.actor import Actor, not_finite_refused
from marl_sb3.core.acting.policy import RolloutPolicy
from marl_sb3.core.experience import Experience
from marl_sb3.core.learners.building import build, check_rollout
from marl_sb3.core.learners.finite import check_update
from marl_sb3.core.learners.learner import Learner, LearnerOptions, Pace, Update
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.on_policy.rollout import MaskedDictRolloutBuffer, MaskedRolloutBuffer, RolloutExperience
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.rows import process_rows
from marl_sb3.core.sb3.tensors import count_steps
from marl_sb3.core.sb3.traits import trait
from marl_sb3.core.state.fields import Fields, scalar
from marl_sb3.doors import PreparedUpdate


class OnPolicyLearner(Learner):
    """A `Learner` that updates by its algorithm's own `train()` at the end of each rollout."""

    rollouts_per_report: ClassVar[int] = 1  # number of rollouts in an iteration, if the run does not set `n_steps`
    # classes of the rollout buffer: the first for observations in one array, the second for those of a `Dict` space
    buffer_classes: ClassVar[Sequence[type[RolloutBuffer]]] = (MaskedRolloutBuffer, MaskedDictRolloutBuffer)
    rollout_policy: ClassVar[type[RolloutPolicy]] = RolloutPolicy  # chooses the actions in a rollout
    takes_common_steps: ClassVar[bool] = True
    takes_parts: ClassVar[Sequence[str]] = ("imitation_data", "central_critic", "curiosity")
    algorithm: OnPolicyAlgorithm

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.buffer.least_minibatch = self.least_minibatch
        if trait(self.algorithm, "num_grad_updates") is None:
            self.algorithm.num_grad_updates = 0  # type: ignore[attr-defined]
            count_steps(self.algorithm)

    @property
    def buffer(self) -> Any:
        """The rollout buffer, a `TurnAwareRollout`."""
        return self.algorithm.rollout_buffer

    @classmethod
    def _build(
        cls, rows: PolicyRows, spec: PolicySpec, seed: int | None, options: LearnerOptions, processing: Processing
    ) -> BaseAlgorithm:
        if options.experience.learns_here:
            check_rollout(rows, spec.algorithm, spec.values["n_steps"], spec.values.get("batch_size"))
        buffer_class = cls.buffer_classes[isinstance(rows.group.observation_space, spaces.Dict)]
        return build(rows, spec, processing, options.device, seed, buffer_class)

    def _make_actor(self) -> Actor:
        processed = process_rows(self.processing, self.rows, self.algorithm.gamma, self.trained)
        return Actor(self.rows, self.rollout_policy(self.algorithm), processed, bootstraps=self.trained)

    def make_experience(self) -> Experience:
        """See `Learner.make_experience`."""
        return RolloutExperience(self.actor)

    @property
    @override
    def pace(self) -> Pace:
        n_steps = self.algorithm.n_steps
        return Pace(n_steps * self.rollouts_per_report, n_steps)

    # --- Update ------------------------------------------------------------------------------------------------------

    @override
    def begin_update(self, progress_remaining: float) -> Update:
        self.follow_schedules(progress_remaining)
        if self.buffer.num_transitions < self.least_transitions:
            return Update(lambda _: None, self._finish_update)
        for each in self.parts:
            each.before_update()
        prepared = None if self.engine is None else self.engine.prepare_update()

        def run(threads: int = 1) -> None:
            with not_finite_refused(self.policy_id, "update"):
                self.algorithm.train() if prepared is None else prepared.run(threads)

        return Update(run, partial(self._finish_update, prepared), parallel=prepared is not None)

    def _finish_update(self, prepared: PreparedUpdate | None = None) -> Result:
        """Return the metrics that `train()` has recorded; raises if a number is not finite."""
        if prepared is not None and self.engine is not None:
            self.engine.finish_update(prepared)
            self.buffer.samples_drawn += prepared.samples_drawn
        recorded = self._take_recorded()
        metrics = self.metrics(recorded)
        check_update(self.rows, self.algorithm, recorded, metrics.get("gradients_global_norm"))
        return metrics

    def _computed(self, recorded: Mapping[str, Any]) -> Result:
        stats = trait(self.algorithm, "update_stats") if recorded else {}
        clipped = trait(self.algorithm, "clip_range_vf") is not None
        parameters = [p.numel() for p in self.algorithm.policy.parameters() if p.requires_grad]
        return {
            "vf_loss_unclipped": stats.get("vf_loss_unclipped", None if clipped else recorded.get("train/value_loss")),
            "total_loss": self._total_loss(recorded) if "total_loss" in self.metric_names else None,
            "gradients_global_norm": stats.get("gradients_global_norm"),
            "num_grad_updates_lifetime": self.algorithm.num_grad_updates,  # type: ignore[attr-defined]
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
        return 2 if trait(self.algorithm, "normalize_advantage") else 1

    def _total_loss(self, recorded: Mapping[str, Any]) -> float | None:
        """Return the mean loss over minibatches; SB3's own `train/loss` is that of the last minibatch."""
        names = (str(self._recorded_as["policy_loss"]), "train/entropy_loss", "train/value_loss")
        if not recorded.keys() >= set(names):  # before the first update; or an algorithm of the user's own
            return None
        policy_loss, entropy_loss, value_loss = (recorded[name] for name in names)
        return float(policy_loss + self.algorithm.ent_coef * entropy_loss + self.algorithm.vf_coef * value_loss)

    fields: ClassVar[Fields] = {**Learner.fields, "grad_updates": scalar("algorithm.num_grad_updates")}
