"""The joint loop: collect until the nearest update that is due, update, and report once per iteration; its counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.learners.learner import Learner, joined_metrics
from marl_sb3.learners.threads import run_in_threads
from marl_sb3.metrics import Result
from marl_sb3.runners.runner import Runner, StepListener
from marl_sb3.storage.parts import Fields, Stateful, counts, integer, number, optional
from marl_sb3.types import Array, PolicyID
from marl_sb3.vec_env.step import VecStep


@dataclass
class Counters(Stateful):
    """Counts since the start of the training.

    Attributes:
        agent_steps: (A,) actions of each agent.
        env_steps: env steps, over all envs.
        iteration: iterations done.
        episodes: finished episodes.
        time_s: seconds of rollouts and updates.
        planned_env_steps: env steps at the planned end; None before `learn` was called.
    """

    fields: ClassVar[Fields] = {
        "num_timesteps": integer("env_steps"),
        "iteration": integer("iteration"),
        "num_episodes": integer("episodes"),
        "agent_steps": counts("agent_steps"),
        "time_total_s": number("time_s", 0.0),
        "total_timesteps": optional(integer("planned_env_steps", 1)),
    }

    agent_steps: Array
    env_steps: int = 0
    iteration: int = 0
    episodes: int = 0
    time_s: float = 0.0
    planned_env_steps: int | None = None
    _before: tuple[int, Array, int] = field(init=False)

    def __post_init__(self) -> None:
        self.begin_iteration()

    @classmethod
    def of_agents(cls, number: int) -> Counters:
        """Make counters of 0 for a number of agents."""
        return cls(np.zeros(number, dtype=np.int64))

    def restart(self) -> None:
        """Set all counters to 0, without a planned end."""
        self.__dict__.update(Counters.of_agents(len(self.agent_steps)).__dict__)

    @property
    def progress_remaining(self) -> float:
        """Return 1 at the start of training, 0 at its planned end, for schedules; 1 without a planned end."""
        if self.planned_env_steps is None:
            return 1.0
        return max(0.0, 1.0 - self.env_steps / self.planned_env_steps)

    def begin_iteration(self) -> None:
        """Begin to count the next iteration."""
        self._before = (self.env_steps, self.agent_steps.copy(), self.episodes)

    def count_step(self, step: VecStep, episodes: int) -> None:
        """Count a step of all envs, and the number of episodes that it ended."""
        self.env_steps += int(np.count_nonzero(step.stepped))
        self.agent_steps += step.acted.sum(axis=0)
        self.episodes += episodes

    @property
    def steps_of_iteration(self) -> int:
        """Env steps of the running iteration."""
        return self.env_steps - self._before[0]

    def of_iteration(self) -> tuple[int, Array, int]:
        """Return env steps, agent steps (A,) and episodes of the running iteration."""
        _, agent_steps, episodes = self._before
        return self.steps_of_iteration, self.agent_steps - agent_steps, self.episodes - episodes

    def state_was_set(self) -> None:
        """A state is saved between iterations."""
        self.begin_iteration()


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
    """Divide learners into groups that update one after the other, if some may run in parallel.

    Those that share no parameters with another one are all in the first group.
    """
    if len(learners) < 2 or not any(hasattr(learner.algorithm, "prepare_update") for learner in learners):
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
