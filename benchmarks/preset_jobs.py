"""Train presets as `python -m marl_sb3.train` does, each in its own process, and evaluate the policies."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
from games import STRONGER, play

import marl_sb3
from marl_sb3.core.metrics import Episode
from marl_sb3.runs import Run, load_config

POINTS = 40  # in a curve of returns
GAME_POINTS = 12  # in a curve of won games

Point = list[float]  # env steps, then one or two values


@dataclass(frozen=True)
class Job:
    """A training to run."""

    algo: str  # name of the algorithm
    env: str  # id of the env
    seed: int  # seed of the run
    variant: str = ""  # name of the settings; "" for the preset itself
    settings: Mapping[str, Any] = field(default_factory=dict)  # as for `--set`; they override those of the preset

    @property
    def name(self) -> str:
        """The name of the preset and its variant, without the seed."""
        return ":".join(filter(None, (self.algo, self.env, self.variant)))

    @property
    def arguments(self) -> str:
        """The arguments of `python -m marl_sb3.train` for this training, without the seed."""
        algo = "" if self.algo == "ppo" else f" --algo {self.algo}"
        return f"{self.env}{algo}" + "".join(f" --set {key}={value}" for key, value in self.settings.items())


@dataclass(frozen=True)
class Budget:
    """Limits of a job."""

    timesteps: int | None  # env steps; None: those of the preset
    episodes: int  # number of episodes of the final evaluation; in games, ten times as many on each side
    deadline_s: float  # when trainings stop, in seconds of `time.monotonic`


@dataclass
class Clock:
    """Adds up the time of blocks of code."""

    wall_s: float = 0.0  # wall-clock time
    cpu_s: float = 0.0  # CPU time of this process; other programs on the machine affect it little

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time that a `with` block takes."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        yield
        self.wall_s += time.perf_counter() - wall_s
        self.cpu_s += time.process_time() - cpu_s


class Watch(marl_sb3.MultiAgentCallback):
    """Ends the training at the deadline, or when the process that waits for the result has ended."""

    def __init__(self, deadline_s: float) -> None:
        super().__init__()
        self.deadline_s, self.in_time = deadline_s, True
        self.parent_id = os.getppid()

    def on_iteration_end(self, result: Any) -> bool:
        """Stop if the parent process has ended."""
        self.in_time = self.in_time and os.getppid() == self.parent_id
        return self.in_time

    def _on_step(self) -> bool:
        self.in_time = time.monotonic() < self.deadline_s
        return self.in_time


class Episodes(marl_sb3.MultiAgentCallback):
    """Records the sum of returns of each episode and when it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[tuple[int, float]] = []

    def on_episode_end(self, episode: Episode) -> None:
        """Record the episode."""
        self.ended.append((self.num_timesteps, sum(episode.agent_returns.values())))

    def curve(self) -> list[Point]:
        """Return the mean return of the episodes that ended in each of `POINTS` equal parts of the training."""
        if not self.ended:
            return []
        ends, returns = np.array(self.ended).T
        edges = np.linspace(0, self.num_timesteps, POINTS + 1).tolist()
        parts = [(high, (ends > low) & (ends <= high)) for low, high in pairwise(edges)]
        return [[high, float(returns[part].mean())] for high, part in parts if part.any()]


class Games(marl_sb3.MultiAgentCallback):
    """Plays against a random player during the training."""

    def __init__(self, env: str, games: int, every: float) -> None:
        super().__init__()
        self.env, self.games, self.every = env, games, every
        self.points: list[Point] = []  # env steps and the shares of won games, as the first and as the second player
        self.clock = Clock()  # measures the time of the games

    def on_iteration_end(self, result: Any) -> bool:
        """Play when `every` more env steps have been taken."""
        if self.num_timesteps >= len(self.points) * self.every:
            with self.clock.running():
                shares = play(self.algorithm.bundle(), self.env, self.games, seed=len(self.points))
            self.points.append([self.num_timesteps, *(share["won"] for share in shares.values())])
        return True


def train(job: Job, budget: Budget) -> dict[str, Any]:
    """Train and evaluate; return plain data."""
    clock, watch, episodes, games = Clock(), Watch(budget.deadline_s), Episodes(), _games(job, budget)
    settings = {"n_parallel_updates": 1, **job.settings}  # train in one thread
    with tempfile.TemporaryDirectory() as folder:
        with clock.running():
            run = marl_sb3.train(
                job.env,
                algo=job.algo,
                seed=job.seed,
                timesteps=budget.timesteps,
                settings=settings,
                run_dir=Path(folder) / "run",
                callback=[watch, episodes, *games],
            )
        return {
            **asdict(job),
            "name": job.name,
            "arguments": job.arguments,
            "complete": watch.in_time,
            "env_steps": run.algorithm.num_timesteps,
            "train_s": clock.wall_s - sum(each.clock.wall_s for each in games),
            "train_cpu_s": clock.cpu_s - sum(each.clock.cpu_s for each in games),
            "evaluation": evaluation(run, budget.episodes),
            "curve": games[0].points if games else episodes.curve(),
        }


def _games(job: Job, budget: Budget) -> list[Games]:
    if job.env not in STRONGER:
        return []
    planned = load_config(job.env, job.algo, None, job.settings, n_timesteps=budget.timesteps)
    return [Games(job.env, 2 * budget.episodes, planned.n_timesteps / GAME_POINTS)]


def evaluation(run: Run, episodes: int) -> dict[str, Any]:
    """Evaluate the trained policies: returns; or in games, where those of self-play tell little, against players."""
    if run.config.env in STRONGER:
        bundle, env = run.bundle(), run.config.env
        stronger = {name: play(bundle, env, 2 * episodes, 1_000, name) for name in STRONGER[env]}
        return {"games": {"random": play(bundle, env, 10 * episodes, seed=1_000), **stronger}}
    result = run.evaluate(episodes, n_envs=min(episodes, 20))
    names = ("episode_return_mean", "episode_return_min", "episode_return_max", "agent_episode_returns_mean")
    return {name: result[name] for name in names} | {"deterministic": run.config.evaluation.deterministic}


# --- Processes -------------------------------------------------------------------------------------------------------


def run_jobs(
    jobs: Sequence[Job], budget: Budget, processes: int, on_result: Callable[[Job, dict[str, Any]], None]
) -> None:
    """Run each job in its own process; none begins after the deadline.

    Args:
        jobs: in the order in which they begin.
        budget: limits of each job.
        processes: how many jobs run at the same time.
        on_result: called in this process with each result; the result of a job that failed has only `error`.
    """
    waiting = deque(jobs)
    running: dict[Connection, tuple[Job, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < processes:
                job = waiting.popleft()
                if time.monotonic() >= budget.deadline_s:
                    on_result(job, {"error": "not begun: the time limit was reached"})
                else:
                    running.update([_started(job, budget)])
            for job, result in _next_results(running):
                on_result(job, result)
    finally:
        for _, process in running.values():
            process.kill()


def _started(job: Job, budget: Budget) -> tuple[Connection, tuple[Job, BaseProcess]]:
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(job, budget, there))
    process.start()
    there.close()
    return here, (job, process)


def _work(job: Job, budget: Budget, answer: Connection) -> None:
    try:
        answer.send(train(job, budget))
    except Exception:
        answer.send({"error": traceback.format_exc()})


def _next_results(running: dict[Connection, tuple[Job, BaseProcess]]) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Wait until at least one job has ended; yield the results of all that have, and remove them from `running`."""
    for connection in wait(list(running)) if running else ():
        assert isinstance(connection, Connection)
        job, process = running.pop(connection)
        try:
            result = connection.recv()
        except EOFError:
            process.join()
            result = {"error": f"its process died with exit code {process.exitcode}"}
        process.join()
        yield job, result
