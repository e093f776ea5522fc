"""The joint loop: collect until the nearest update that is due, update, and report once per iteration; its counters."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.core.experience import ExperienceHook
from marl_sb3.core.learners.learner import Learner, run_in_threads
from marl_sb3.core.metrics.episodes import Episode
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.sb3.private import all_callbacks, has_step_hook
from marl_sb3.core.sb3.schedules import Progress
from marl_sb3.core.sb3.tensors import optimized_parameters
from marl_sb3.core.state.fields import Fields, Stateful, array, scalar
from marl_sb3.core.state.state import AS_COUNTS
from marl_sb3.core.training.callback import (
    TrainingCallback,
    TrainingWatcher,
    call_hook,
    has_hook,
    training_callbacks,
    with_hook,
)
from marl_sb3.core.training.runner import Runner
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.doors import WATCHERS
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, PolicyID


class Counters(Stateful):
    """Counts since the start of the training.

    Args:
        num_agents: number of agents, A.
    """

    fields: ClassVar[Fields] = {
        "num_timesteps": scalar("env_steps"),
        "iteration": scalar("iteration"),
        "num_episodes": scalar("episodes"),
        "agent_steps": array("agent_steps", *AS_COUNTS),
        "time_total_s": scalar("time_s", 0.0),
        "total_timesteps": scalar("planned_env_steps", 1, like=0),
    }

    def __init__(self, num_agents: int) -> None:
        self._num_agents = num_agents
        self.restart()

    def restart(self) -> None:
        """Set all counters to 0, without a planned end."""
        self.agent_steps: Array = np.zeros(self._num_agents, dtype=np.int64)  # (A,) actions of each agent
        self.env_steps = 0  # over all envs
        self.iteration = self.episodes = 0  # that are done
        self.time_s = 0.0  # seconds that rollouts and updates took
        self.planned_env_steps: int | None = None  # at the planned end; None before `learn` was called
        self.begin_iteration()

    def progress_remaining(self, after: int = 0) -> Progress:
        """Return 1 at the start of training, 0 at its planned end, for schedules; 1 without a planned end.

        Schedules of points take the env steps from it.

        Args:
            after: that many env steps from now.
        """
        env_steps, planned = self.env_steps + after, self.planned_env_steps
        return Progress(1.0 if planned is None else max(0.0, 1.0 - env_steps / planned), env_steps)

    def begin_iteration(self) -> None:
        """Begin to count the next iteration."""
        self._before = (self.env_steps, self.agent_steps.copy(), self.episodes)

    def of_iteration(self) -> tuple[int, Array, int]:
        """Return env steps, agent steps (A,) and episodes of the running iteration."""
        env_steps, agent_steps, episodes = self._before
        return self.env_steps - env_steps, self.agent_steps - agent_steps, self.episodes - episodes

    def state_was_set(self) -> None:
        """A state is saved between iterations."""
        self.begin_iteration()


@dataclass
class IterationReport:
    """Times and metrics of one iteration."""

    sampling_s: float = 0.0  # seconds of collecting experience
    update_s: float = 0.0  # seconds of updates
    # policy id -> the metrics of each of its updates
    metrics: dict[PolicyID, list[Result]] = field(default_factory=dict)


class TrainingLoop:
    """Runs iterations; it is the `StepListener` that counts steps and episodes and calls the callbacks.

    Args:
        model: what callbacks get as `self` among their `locals`.
        runner: takes the steps.
        learners: those of all policies.
        counters: are kept up to date.
        n_steps: env steps of each env in an iteration.
        at_once: number of updates that run in parallel, if possible.
    """

    def __init__(
        self,
        model: Any,
        runner: Runner,
        learners: Mapping[PolicyID, Learner],
        counters: Counters,
        n_steps: int,
        at_once: int,
    ) -> None:
        self.changes_policies = False
        self._model, self._runner, self._counters = model, runner, counters
        self._trained = [learner for learner in learners.values() if learner.trained]
        self.n_steps, self._at_once = n_steps, at_once
        self._slowest = max(self._trained, key=lambda learner: learner.pace.rollout_steps or 0, default=None)
        self._steps_of_envs: Array | None = None
        self.watchers: Mapping[str, TrainingWatcher] = {}  # those of the training, by their names at the door
        self._update_hooks: Sequence[TrainingCallback] = ()
        self._restart_hooks: Sequence[TrainingCallback] = ()

    def begin(self, callback: BaseCallback) -> None:
        """Find the hooks of the callbacks with which a training begins, and what watches it.

        Raises:
            ConfigError: a hook cannot run where the envs are stepped, or two would change the same experience.
        """
        env, runner = self._model.env, self._runner
        made: dict[str, Any] = {name: WATCHERS[name](self._model, callback) for name in WATCHERS.names()}
        changing = {name: each for name, each in made.items() if isinstance(each, ExperienceHook)}
        if len(changing) > 1:
            words = f"{' and '.join(changing)} would change the same experience; accepted: one of them"
            raise ConfigError(words, key="callback")
        runner.show_experience(next(iter(changing.values()), None), self._counters.env_steps // env.num_envs)
        self._update_hooks = with_hook(callback, "on_update_start")
        self._restart_hooks = with_hook(callback, "on_workers_restarted")
        for before in self.watchers.values():
            self._model.remove_watcher(before)
        self.watchers = {name: each for name, each in made.items() if each is not None and name not in changing}
        if runner.watchers is not None:
            runner.watchers.extend(self.watchers.values())
        for each in with_hook(callback, "on_envs_created"):
            call_hook(each, "on_envs_created", env)

    def iterate(self, callback: BaseCallback, budget: float = math.inf) -> IterationReport | None:
        """Run one iteration; returns None if the callback stopped it.

        Args:
            budget: env steps of the training. The iteration ends early where these are taken and the policy with the
                longest rollouts has updated, so that nothing is collected in vain.
        """
        self.callback, self.changes_policies = callback, has_step_hook(callback)
        self._counters.begin_iteration()
        report, taken = IterationReport(), 0
        # Of each env in this iteration, if they take their steps at different times.
        apart = self._model.env.steps_apart
        self._steps_of_envs = np.zeros(self._model.env.num_envs, dtype=np.int64) if apart else None
        while taken < self.n_steps:
            started_s = time.perf_counter()
            if self._runner.begin_rollouts() or not self._trained:
                callback.on_rollout_start()
            env_steps = min([self.n_steps - taken, *(learner.due_in() for learner in self._trained)])
            health = self._runner.health if self._restart_hooks else None
            if not self._runner.collect(env_steps, self):
                return None
            taken = taken + env_steps if self._steps_of_envs is None else int(self._steps_of_envs.max())
            if health is not None:  # there are hooks of restarts
                now = self._runner.health
                if now is not None and now.num_worker_restarts > health.num_worker_restarts:
                    for each in self._restart_hooks:
                        call_hook(each, "on_workers_restarted", now)
            due = [learner for learner in self._trained if learner.due_in() == 0]
            if due or not self._trained:
                callback.on_rollout_end()
            collected_s = time.perf_counter()
            self._update(due, report)
            report.sampling_s += collected_s - started_s
            report.update_s += time.perf_counter() - collected_s
            if self._counters.env_steps >= budget and self._slowest in due:
                break
        self._counters.iteration += 1
        self._counters.time_s += report.sampling_s + report.update_s
        return report

    def on_step(self, step: VecStep, episodes: Sequence[Episode]) -> bool:
        """See `StepListener.on_step`."""
        counters = self._counters
        counters.env_steps += int(np.count_nonzero(step.stepped))
        if self._steps_of_envs is not None:
            self._steps_of_envs += step.stepped
        all_acted = np.count_nonzero(step.acted) == step.acted.size
        counters.agent_steps += len(step.acted) if all_acted else step.acted.sum(axis=0)
        counters.episodes += len(episodes)
        for watcher in self.watchers.values():
            watcher.finished(episodes, step)
        return self._call_back(step, episodes)

    def on_steps(self, steps: int, last: VecStep, episodes: Sequence[Episode]) -> bool:
        """Note many steps of all envs, in which every agent acted, instead of calling `on_step` for each; see there."""
        counters, envs = self._counters, self._model.env.num_envs
        counters.env_steps += steps * envs
        counters.agent_steps += steps * envs
        counters.episodes += len(episodes)
        for each in all_callbacks(self.callback):
            each.n_calls += steps - 1
        return self._call_back(last, episodes)

    def _call_back(self, step: VecStep, episodes: Sequence[Episode]) -> bool:
        for episode in episodes:
            for each in training_callbacks(self.callback):
                if not has_hook(each, "on_episode_end"):
                    each.on_episode_end(episode)  # type: ignore[arg-type]  # it has all that callbacks of ours read
        of_step = {"step": step, "rewards": step.rewards, "dones": step.episode_done, "infos": step.infos}
        self.callback.update_locals({"self": self._model, **of_step})
        return self.callback.on_step()

    def _update(self, due: Sequence[Learner], report: IterationReport) -> None:
        """Update the policies that are due, in parallel where possible."""
        progress_remaining = self._counters.progress_remaining()
        for learners in _without_shared_parameters(due):
            for each in self._update_hooks:
                for learner in learners:
                    policy_id, algorithm = learner.policy_id, learner.algorithm
                    batch = getattr(algorithm, "rollout_buffer", None) or algorithm.replay_buffer
                    call_hook(each, "on_update_start", policy_id, batch, where=f"policy {policy_id!r}")
            jobs = {learner.policy_id: learner.begin_update(progress_remaining) for learner in learners}
            for job in jobs.values():
                if not job.parallel:
                    job.run(self._at_once)
            run_in_threads([job.run for job in jobs.values() if job.parallel], self._at_once)
            for policy_id, job in jobs.items():
                report.metrics.setdefault(policy_id, []).append(job.finish())


def _without_shared_parameters(learners: Sequence[Learner]) -> list[list[Learner]]:
    """Divide learners into groups that update one after the other, if some may run in parallel.

    Those that share no parameters with another one are all in the first group.
    """
    if len(learners) < 2 or all(learner.engine is None for learner in learners):
        return [[*learners]]
    groups: list[tuple[list[Learner], set[int]]] = [([], set())]
    for learner in learners:
        addresses = [parameter.data_ptr() for *_, parameter in optimized_parameters(learner.algorithm)]
        shared = [number for number, (_, taken) in enumerate(groups) if not taken.isdisjoint(addresses)]
        number = shared[-1] + 1 if shared else 0
        if number == len(groups):
            groups.append(([], set()))
        groups[number][0].append(learner)
        groups[number][1].update(addresses)
    return [group for group, _ in groups]
