"""Who works on the trials and finalists of a search.

Worker processes do, this process if no other can import the env, or a Ray cluster.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import optuna
from filelock import FileLock, Timeout
from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.cli import EXIT_DONE, EXIT_INTERRUPTED, run_command
from marl_sb3.core.envs import EnvFactory, env_factory, register_env
from marl_sb3.core.learners import available_cores
from marl_sb3.core.metrics import Result
from marl_sb3.envs import importable_id
from marl_sb3.errors import ConfigError, MarlSb3Error, is_disk_full
from marl_sb3.extensions.remote import (
    CAN_FORK,
    Link,
    ProcessContext,
    RestartBudget,
    Worker,
    WorkerLostError,
    by_value,
    ending,
    fork_server,
    packed_request,
)
from marl_sb3.runs import TrainConfig
from marl_sb3.tools.tuning.queue import TrialQueue
from marl_sb3.tools.tuning.search import read_search
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trial import INTERRUPTED

_log = logging.getLogger(__name__)

GRACE_S = 30.0  # time that a training may take to finish its iteration when the search ends
POLL_S = 0.5  # time between checks of the workers
MODULES = f"numba,marl_sb3.runs.start,marl_sb3.runs.execute,{__name__}"  # what the fork server of workers imports
_MAX_DEATHS = 3  # of workers in a row while no job is finished
_DISK_FULL = 28  # what a worker returns: ENOSPC

_numbers = itertools.count()  # make the names of all workers of this process unique


class SearchError(MarlSb3Error, RuntimeError):
    """A search cannot continue: its workers end at once, every trial fails, or the disk is full."""


@dataclass(frozen=True)
class TrainedRun:
    """What a job stores of a run that was trained."""

    folder: Path  # of the run, on this machine
    interrupted: bool  # whether a signal, or the end of the search, ended it
    result: Result | None = None  # the metrics of the last iteration
    results: Sequence[Result] = ()  # the metrics of all iterations; empty if it was interrupted
    checkpoint: str | None = None  # the name of the latest checkpoint
    cpu_seconds: float | None = None  # processor time of the process that trained it, from the start to the end


# Trains a run in a folder of this machine. It raises `TrainerLostError` if the process that trained it has ended.
Train = Callable[[TrainConfig, Path, EnvFactory | None, Sequence[BaseCallback]], TrainedRun]


class TrainerLostError(RuntimeError):
    """The process that trained a run has ended; the run has to be trained again."""


def train_here(
    config: TrainConfig, folder: Path, factory: EnvFactory | None, callbacks: Sequence[BaseCallback]
) -> TrainedRun:
    """See `Train`: in this process."""
    from marl_sb3.runs import prepare
    from marl_sb3.runs.execute import execute

    start_s = time.process_time()
    run = execute(prepare(config, folder, factory), callbacks)
    results = () if run.interrupted else run.results
    return TrainedRun(run.folder, run.interrupted, run.result, results, run.checkpoint, time.process_time() - start_s)


@dataclass(frozen=True)
class Jobs:
    """Trials of a study that are to be run."""

    queue_of: Callable[[TuneStudy], TrialQueue]  # the queue of a study that has them
    # trains a claimed trial and stores the outcome; returns False if it was interrupted
    run: Callable[[TuneStudy, optuna.trial.Trial, Train], bool]


# Runs all jobs, so many at a time, and calls a function several times a second: see `RayTrainer.work`.
Trainer = Callable[[TuneStudy, Jobs, int, Callable[[], None]], None]


def work(
    study: TuneStudy,
    jobs: Jobs,
    worker: str,
    look: Callable[[], None] = lambda: None,
    is_wanted: Callable[[], bool] = lambda: True,
    train: Train = train_here,
) -> bool:
    """Claim and run jobs one after the other until there are none left.

    Args:
        is_wanted: called before each job; work ends if it returns False.

    Returns:
        False if a job was interrupted.
    """
    queue = jobs.queue_of(study)
    with queue.working(worker):
        while is_wanted() and (trial := queue.claim(worker)) is not None:
            if not jobs.run(study, trial, train):
                return False
            look()
    return True


# --- Who works on them -----------------------------------------------------------------------------------------------


def run_jobs(
    study: TuneStudy, jobs: Jobs, workers: int, look: Callable[[], None], trainer: Trainer | None = None
) -> None:
    """Run jobs until none are left; killed workers are replaced, and their jobs requeued.

    Args:
        study: of the jobs.
        workers: the number of processes; the cores are divided among them.
        look: called twice a second and at the end.
        trainer: trains `workers` runs at a time on a cluster; None: worker processes of this machine do.

    Raises:
        ConfigError: another process is running this study, or workers cannot import the env.
        SearchError: workers end again and again, or the disk is full.
        KeyboardInterrupt: raised again after all workers have ended.
    """
    with study_lock(study.folder):
        if trainer is not None:
            run = partial(trainer, study, jobs, workers, look)
        elif workers == 1 and (not CAN_FORK or importable_id(study.search.env, study.factory) is None):
            run = partial(work_here, study, jobs, look)
        else:
            run = partial(Workers(study, workers, jobs).run, look)
        run()
        while jobs.queue_of(study).is_waiting():
            run()
        look()


def study_lock(folder: Path) -> AbstractContextManager[object]:
    """Keep other processes from running the study of this folder, within the context.

    Raises:
        ConfigError: another process is running it.
    """
    try:
        return FileLock(folder / ".search.lock").acquire(timeout=0)
    except Timeout:
        raise ConfigError(f"{folder} is in use: another process is running this study", key="study") from None


def work_here(study: TuneStudy, jobs: Jobs, look: Callable[[], None]) -> None:
    """Run all jobs in this process; see `run_jobs`."""
    if not work(study, jobs, f"here-{os.getpid()}-{secrets.token_hex(2)}", look):
        raise KeyboardInterrupt


class Workers:
    """A fixed number of worker processes that divide the cores among them.

    Args:
        study: of the jobs.
        count: number of processes.
        jobs: what they run; dead workers are replaced while jobs get finished.
    """

    def __init__(self, study: TuneStudy, count: int, jobs: Jobs) -> None:
        env, path = study.search.env, importable_id(study.search.env, study.factory)
        if path is None:
            words = f"env {env!r} cannot be imported by {count} worker processes"
            raise ConfigError(f"{words}; accepted: a class or function of a module, or one worker", key="env")
        self._folder = study.folder / "workers"
        self._arguments = study.folder, env, path, study.search.storage, jobs
        self._queue = jobs.queue_of(study)
        environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, available_cores() // count))}
        self._context = replace(ProcessContext.here(imports=True), environment=environment)
        self._count = count
        self._running: dict[str, Worker] = {}
        self._deaths = RestartBudget(_MAX_DEATHS)
        self._done = 0  # finished jobs when the latest worker died

    def run(self, watch: Callable[[], None]) -> None:
        """Start the workers and wait until all have ended because there are no jobs left, and others of the study, too.

        Args:
            watch: called twice a second.

        Raises:
            SearchError: workers die repeatedly, or the disk is full.
            KeyboardInterrupt: raised again after all workers have ended.
        """
        try:
            for _ in range(self._count):
                self._start()
            while self._running:
                select.select(list(self._running.values()), [], [], POLL_S)
                watch()
                self._replace_ended()
        finally:
            self._stop()
        if at_work := self._queue.in_flight():
            _log.warning("waiting for other workers of this study: %s", ", ".join(at_work))
        while self._queue.in_flight():
            time.sleep(POLL_S)
            watch()
        self._queue.requeue_dead()

    def _start(self) -> None:
        name = f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        self._folder.mkdir(exist_ok=True)
        request = packed_request("run", (self._context, by_value((_work_on_study, (name, *self._arguments)))))
        with self._log(name).open("wb") as log:
            worker = Worker(name, partial(fork_server, MODULES), request, timeout_s=GRACE_S, descriptors=[log.fileno()])
            try:
                worker.start()
            except WorkerLostError as error:
                raise SearchError(str(error)) from error
        self._running[name] = worker

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _replace_ended(self) -> None:
        ready, _, _ = select.select(list(self._running.values()), [], [], 0.0)
        for name in [name for name, worker in self._running.items() if worker in ready]:
            worker = self._running.pop(name)
            code = _exit_code(worker)
            worker.free()
            if code == _DISK_FULL:
                raise SearchError(
                    f"no space left on the disk of {self._folder.parent}; free some, then continue the study"
                )
            if code != EXIT_DONE:
                self._queue.requeue_dead()
                self._require_progress(name, ending(code))
                self._start()

    def _require_progress(self, name: str, how: str) -> None:
        done = self._queue.n_done()
        if done > self._done:
            self._deaths.succeeded()
        self._done = done
        if self._deaths.lost():
            last = self._log(name).read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            words = f"worker processes end with {how} again and again"
            raise SearchError(f"{words}, the last one saying {last!r}; see {self._log(name)}")

    def _stop(self) -> None:
        """End the workers that still run: each finishes its iteration, and its job is requeued."""
        for worker in self._running.values():
            worker.send_signal(signal.SIGTERM)
        until_s = time.monotonic() + GRACE_S
        try:
            for worker in self._running.values():
                _exit_code(worker, until_s)
        except KeyboardInterrupt:  # a second Ctrl-C ends the wait
            _log.debug("workers are killed")
        finally:
            for worker in self._running.values():
                worker.free()
        if self._running:
            self._running.clear()
            self._queue.requeue_dead(INTERRUPTED)


def _exit_code(worker: Worker, until_s: float | None = None) -> int | None:
    """Return the exit code of a worker that has ended, or is to end until then."""
    try:
        code: int = Worker.result(worker.receive(until_s))
    except WorkerLostError as error:
        return error.code
    return code


# --- In a worker -----------------------------------------------------------------------------------------------------


def _work_on_study(link: Link, name: str, folder: Path, env: str, path: str, storage: str | None, jobs: Jobs) -> int:
    """Run jobs of a study until none are left; returns an exit code as the commands do.

    Args:
        link: its descriptor is that of the log.
        name: of the worker.
        folder: of the study.
        env: id of the env.
        path: the import path of its factory, if it was registered in the search's process; otherwise the id.
        storage: see `Search`.
        jobs: what it runs.
    """
    link.write_to(link.descriptors[0])

    def run() -> int:
        if path != env:
            register_env(env, env_factory(path))
        search = read_search(folder, env, storage)
        if search is None:
            raise ConfigError(f"{folder} holds no study", key="study")
        try:
            return EXIT_DONE if work(TuneStudy(search, folder), jobs, name) else EXIT_INTERRUPTED
        except OSError as error:
            if not is_disk_full(error):
                raise
            return _DISK_FULL

    return run_command(run, 1)
