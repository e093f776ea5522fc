"""The joint loop: collect until the nearest update that is due, update, and report once per iteration."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.learners.learner import Learner, joined_metrics
from marl_sb3.learners.threads import run_in_threads
from marl_sb3.metrics import Result
from marl_sb3.runners.interface import Runner, StepListener
from marl_sb3.types import PolicyID


@dataclass
class IterationReport:
    """Times and metrics of one iteration.

    Attributes:
        sampling_s: seconds of collecting experience.
        update_s: seconds of updates.
        metrics: policy id -> the metrics of each of its updates.
    """

    sampling_s: float = 0.0
    update_s: float = 0.0
    metrics: dict[PolicyID, list[Result]] = field(default_factory=dict)

    def of_learners(self) -> dict[PolicyID, Result]:
        """Return policy id -> the joined metrics of all its updates, for the policies that were updated."""
        return {policy_id: joined_metrics(of_updates) for policy_id, of_updates in self.metrics.items()}


class TrainingLoop:
    """Runs iterations.

    Args:
        at_once: number of updates that run in parallel, if possible.
    """

    def __init__(self, runner: Runner, learners: Mapping[PolicyID, Learner], n_steps: int, at_once: int) -> None:
        self.n_steps = n_steps
        self._runner = runner
        self._trained = [learner for learner in learners.values() if learner.trained]
        self._at_once = at_once

    def iterate(
        self, callback: BaseCallback, listener: StepListener, progress_remaining: Callable[[], float]
    ) -> IterationReport | None:
        """Run one iteration.

        Args:
            callback: called at the start and the end of each rollout.
            listener: called after every step.
            progress_remaining: from 1 at the start of training to 0 at its end, for schedules.

        Returns:
            The report; None if the listener stopped the iteration.
        """
        report, taken = IterationReport(), 0
        while taken < self.n_steps:
            started_s = time.perf_counter()
            env_steps = self._begin_rollouts(callback, self.n_steps - taken)
            if not self._runner.collect(env_steps, listener):
                return None
            taken += env_steps
            due = [learner for learner in self._trained if learner.due_in() == 0]
            if due or not self._trained:
                callback.on_rollout_end()
            collected_s = time.perf_counter()
            self._update(due, progress_remaining(), report)
            report.sampling_s += collected_s - started_s
            report.update_s += time.perf_counter() - collected_s
        return report

    def _begin_rollouts(self, callback: BaseCallback, steps_left: int) -> int:
        """Begin the rollouts that are due; returns the env steps to the next update or the end of the iteration."""
        if self._runner.begin_rollouts() or not self._trained:
            callback.on_rollout_start()
        return min([steps_left, *(learner.due_in() for learner in self._trained)])

    def _update(self, due: Sequence[Learner], progress_remaining: float, report: IterationReport) -> None:
        """Update the policies that are due, in parallel where possible."""
        for learners in _without_shared_parameters(due):
            jobs = {learner.policy_id: learner.begin_update(progress_remaining) for learner in learners}
            for job in jobs.values():
                if not job.parallel:
                    job.run()
            run_in_threads([job.run for job in jobs.values() if job.parallel], self._at_once)
            for policy_id, job in jobs.items():
                report.metrics.setdefault(policy_id, []).append(job.finish())


def _without_shared_parameters(learners: Sequence[Learner]) -> list[list[Learner]]:
    """Divide learners into groups that update one after the other, if some work on copies of their parameters.

    Those that share no parameters with another one are all in the first group.
    """
    if len(learners) < 2 or not any(learner.updates_copies for learner in learners):
        return [[*learners]]
    groups: list[tuple[list[Learner], set[int]]] = [([], set())]
    for learner in learners:
        addresses = learner.parameter_addresses()
        shared = [number for number, (_, taken) in enumerate(groups) if not taken.isdisjoint(addresses)]
        number = shared[-1] + 1 if shared else 0
        if number == len(groups):
            groups.append(([], set()))
        groups[number][0].append(learner)
        groups[number][1].update(addresses)
    return [group for group, _ in groups]
