"""Train a policy by an algorithm whose updates may run in the fused kernels."""

from __future__ import annotations

from typing import ClassVar

from marl_sb3.learners.learner import UpdateJob
from marl_sb3.learners.on_policy import OnPolicyLearner, TrainJob
from marl_sb3.learners.ppo.fused.algorithm import FusedUpdates
from marl_sb3.learners.ppo.fused.update import FusedUpdate
from marl_sb3.metrics import Result


class FusedLearner(OnPolicyLearner):
    """An `OnPolicyLearner` for marl_sb3's class of an algorithm, and for SB3's."""

    updates_copies: ClassVar[bool] = True

    def begin_update(self, progress_remaining: float) -> UpdateJob:
        """See `Learner.begin_update`."""
        job = super().begin_update(progress_remaining)
        algorithm = self.algorithm
        own = getattr(algorithm.train, "__func__", None)  # a user's subclass or instance may train in its own way
        if not isinstance(algorithm, FusedUpdates) or own is not FusedUpdates.train:
            return job
        if self.collector.buffer.num_transitions < self.least_transitions:
            return job
        update = algorithm.prepare_update()
        return FusedJob(self, update) if isinstance(update, FusedUpdate) else TrainJob(self, update.run)

    def _count_grad_updates(self) -> None:
        if not isinstance(self.algorithm, FusedUpdates):
            super()._count_grad_updates()

    @property
    def num_grad_updates(self) -> int:
        """Optimizer steps taken."""
        return self.algorithm.num_grad_updates if isinstance(self.algorithm, FusedUpdates) else self._grad_updates

    @num_grad_updates.setter
    def num_grad_updates(self, count: int) -> None:
        if isinstance(self.algorithm, FusedUpdates):
            self.algorithm.num_grad_updates = count
        self._grad_updates = count


class FusedJob(TrainJob):
    """An update by the kernels, which release the GIL."""

    parallel = True

    def __init__(self, learner: FusedLearner, update: FusedUpdate) -> None:
        super().__init__(learner, update.run)
        self._update = update

    def finish(self) -> Result:
        """See `UpdateJob.finish`."""
        self._learner.algorithm.finish_update(self._update)  # type: ignore[attr-defined]
        self._learner.collector.buffer.samples_drawn += self._update.samples_drawn
        return super().finish()
