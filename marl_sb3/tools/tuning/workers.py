"""Who works on the trials and finalists of a search.

A search has workers, each a thread that claims a job, has a process train it, and stores the outcome: a process of this
machine, or of a Ray cluster. This process trains itself if no other can import the env. Only the search knows Optuna.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout

from marl_sb3.core.envs.registry import EnvFactory, env_factory, register_env
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.metrics.opposition import Opposition
from marl_sb3.core.training.callback import TrainingCallback
from marl_sb3.envs.finding import importable_id
from marl_sb3.errors import ConfigError, MarlSb3Error, is_disk_full
from marl_sb3.extensions.hooks.episodes import RunningEpisode
from marl_sb3.extensions.remote.processes.fork_server import fork_server
from marl_sb3.extensions.remote.processes.messages import ProcessContext, by_value, packed_request
from marl_sb3.extensions.remote.processes.serve import Link
from marl_sb3.extensions.remote.processes.worker import Worker, WorkerLostError, WorkerRefusedError, ending
from marl_sb3.files.regular import open_regular
from marl_sb3.runs.execution import execute
from marl_sb3.runs.jobs import Jobs
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.start import prepare, resume_own
from marl_sb3.signals import interrupting
from marl_sb3.systems import CAN_FORK, KILL, require_fork
from marl_sb3.tools.tuning.study import IN_PROCESS, TrialQueue, TuneStudy

_log = logging.getLogger(__name__)

GRACE_S = 30.0  # time that a training may take to finish its iteration when the search ends
POLL_S = 0.5  # time between checks of the workers
MODULES = f"numba,{__name__}"  # what the fork server of workers imports
_START_S = 600.0  # longest time in which a worker imports the env

_numbers = itertools.count()  # make the names of all workers of this process unique


class SearchError(MarlSb3Error, RuntimeError):
    """A search cannot continue: its workers end at once, every trial fails, or the disk is full."""


class TrainerLostError(RuntimeError):
    """A training has ended before its time; the run has to be trained again.

    Args:
        by_others: whether a signal ended it, or the end of the search, which is not the fault of the run; otherwise its
            process has died.
    """

    def __init__(self, message: str, *, by_others: bool = False) -> None:
        super().__init__(message)
        self.by_others = by_others


GoesOn = Callable[[Result], bool]  # asked about each evaluation: whether the training goes on


@dataclass(frozen=True)
class TrainingRequest:
    """A training that a search wants."""

    config: TrainConfig  # of a new training with its settings
    folder: Path  # of the run, on this machine
    factory: EnvFactory | None = None  # makes the env, if its id does not
    goes_on: GoesOn | None = None  # None: to its end
    watches_opposition: bool = False  # whether it ends when it is clear that the agents' returns oppose each other
    # It goes on from the newest checkpoint in its folder, with settings that may be others than so far, by key as after
    # `--set`; None: it is a new one.
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class TrainedRun:
    """What a search stores of a run that was trained."""

    result: Result | None = None  # the metrics of the last iteration
    results: Sequence[Result] = ()  # the metrics of all iterations with an evaluation
    checkpoint: str | None = None  # the name of the latest checkpoint
    cpu_seconds: float | None = None  # processor time of the process that trained it, from the start to the end
    opposed: str | None = None  # how the agents' returns oppose each other, if that was watched
    doubt: str | None = None  # why it is not certain that they do not


# Trains a run in a folder of this machine. It raises `TrainerLostError` if it has to be trained again.
Train = Callable[[TrainingRequest], TrainedRun]


class PruningCallback(TrainingCallback):
    """Asks the search after each evaluation whether the training goes on; it does not if its agents' returns oppose.

    Attributes:
        opposition: whether they do; None: the training has not started, or nobody asks.
    """

    def __init__(self, request: TrainingRequest) -> None:
        super().__init__()
        self._request = request
        self.opposition: Opposition | None = None

    def _on_training_start(self) -> None:
        algorithm: Any = self.model
        if self._request.watches_opposition:
            self.opposition = Opposition(algorithm.env.agents, algorithm.policy_of)

    def on_episode_end(self, episode: RunningEpisode) -> None:
        """Compare the returns of the agents."""
        if self.opposition is not None:
            self.opposition.add(episode.agent_returns)

    def on_iteration_end(self, result: Result) -> bool:
        """End the training if the returns turn out to oppose each other, or the search wants it."""
        if self.opposition is not None and self.opposition.words() is not None:
            return False
        goes_on = self._request.goes_on
        return "evaluation" not in result or goes_on is None or goes_on(result)


def train_here(request: TrainingRequest) -> TrainedRun:
    """See `Train`: in this process.

    Raises:
        KeyboardInterrupt: a signal has ended the training.
    """
    start_s = time.process_time()
    if request.settings is None:
        run = prepare(request.config, request.folder, request.factory)
    else:
        run = resume_own(request.folder, request.config, request.factory, request.settings)
    callback = PruningCallback(request)
    run = execute(run, [] if request.goes_on is None else [callback])
    if run.interrupted:
        raise KeyboardInterrupt
    results = [result for result in run.results if "evaluation" in result]
    trained = TrainedRun(run.result, results, run.checkpoint, time.process_time() - start_s)
    if (opposition := callback.opposition) is None:
        return trained
    return replace(trained, opposed=opposition.words(), doubt=opposition.doubt())


# --- Workers ---------------------------------------------------------------------------------------------------------


# Trains a claimed trial of a study and stores the outcome.
RunTrial = Callable[[TuneStudy, optuna.trial.Trial, Train], None]

# Opens as many workers as there are jobs at once, and closes them: name -> how it trains.
Trainer = Callable[[TuneStudy, Jobs], AbstractContextManager[Mapping[str, Train]]]


def run_jobs(
    study: TuneStudy,
    queue: TrialQueue,
    run: RunTrial,
    workers: int,
    look: Callable[[], None],
    trainer: Trainer | None = None,
) -> None:
    """Run the trials of a queue until none are left; killed processes are replaced, and their trials requeued.

    Args:
        study: of the trials.
        queue: one of the study's.
        run: runs one of its trials.
        workers: the number of processes; the cores are divided among them.
        look: called twice a second and at the end.
        trainer: has a cluster train; None: processes of this machine do.

    Raises:
        ConfigError: another process is running this study, or workers cannot import the env.
        SearchError: workers end again and again, or the disk is full.
        KeyboardInterrupt: raised again after all trainings have ended.
    """
    with study_lock(study.folder):
        try:
            if trainer is None and is_trained_here(study, workers):
                work(study, queue, run, f"{IN_PROCESS}{os.getpid()}-{next(_numbers)}", train_here, look)
            else:
                jobs = Jobs(workers, GRACE_S)
                with (trainer or local_workers)(study, jobs) as trains:
                    begin = partial(work, study, queue, run, is_wanted=lambda: not jobs.is_ending)
                    jobs.run([partial(begin, *worker) for worker in trains.items()], look, POLL_S)
        except OSError as error:
            if not is_disk_full(error):
                raise
            words = f"no space left on the disk of {study.folder}; free some, then continue the study"
            raise SearchError(words) from error
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


def is_trained_here(study: TuneStudy, workers: int) -> bool:
    """Whether this process trains: no other can."""
    return workers == 1 and (not CAN_FORK or importable_id(study.search.env, study.factory) is None)


def work(
    study: TuneStudy,
    queue: TrialQueue,
    run: RunTrial,
    worker: str,
    train: Train = train_here,
    look: Callable[[], None] = lambda: None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Claim and run trials one after the other until there are none left.

    Args:
        look: called after each trial.
        is_wanted: called before each trial; the work ends if it returns False.
    """
    while is_wanted() and (trial := queue.claim(worker)) is not None:
        run(study, trial, train)
        look()


# --- Processes of this machine ---------------------------------------------------------------------------------------


@contextmanager
def local_workers(study: TuneStudy, jobs: Jobs) -> Iterator[Mapping[str, Train]]:
    """See `Trainer`: each worker has a process, and all divide the cores among them."""
    env, path = study.search.env, importable_id(study.search.env, study.factory)
    require_fork("--workers", jobs.at_once, "1, or a Ray cluster of Linux")
    if path is None:
        words = f"env {env!r} cannot be imported by {jobs.at_once} worker processes"
        raise ConfigError(f"{words}; accepted: a class or function of a module, or one worker", key="env")
    fork_server(MODULES)  # in this thread: the system ends it with the thread that has started it
    environment = {**os.environ, "OMP_NUM_THREADS": str(jobs.cores)}
    make = (replace(ProcessContext.here(imports=True), environment=environment), by_value((_Training, (env, path))))
    with ExitStack() as cleanup:
        workers = [_WorkerProcess(study.folder / "workers", make, jobs) for _ in range(jobs.at_once)]
        for worker in workers:
            cleanup.callback(worker.close)
        yield {worker.name: worker.train for worker in workers}


class _WorkerProcess:
    """The process of a worker, which is started when there is something to train, and anew if it has died.

    Args:
        folder: of its log.
        make: the arguments of the request that makes what the process serves.
        jobs: of all workers.
    """

    def __init__(self, folder: Path, make: Sequence[Any], jobs: Jobs) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        self._log, self._make, self._jobs = folder / f"{self.name}.log", make, jobs
        self._worker: Worker | None = None
        self._answers = -1  # a pipe to the process

    def train(self, request: TrainingRequest) -> TrainedRun:
        """See `Train`; the factory is not sent: the process imports it."""

        def answer(result: Result) -> None:
            goes = False
            try:
                goes = request.goes_on is None or request.goes_on(result)
            finally:
                with suppress(BrokenPipeError):  # it has died
                    os.write(self._answers, b"+" if goes else b"-")

        try:
            worker = self._worker or self._start()
            end_if_wanted = self._jobs.ender(lambda kills: worker.send_signal(KILL if kills else signal.SIGTERM))
            sent, asks = replace(request, factory=None, goes_on=None), request.goes_on is not None
            run: TrainedRun = worker.ask("train", sent, asks, on_news=answer, on_look=end_if_wanted)
        except WorkerLostError as error:
            self.close()
            self._note_end(ending(error.code))
            by_others = self._jobs.is_ending or error.code is None  # it was killed, or ended with its fork server
            raise TrainerLostError(str(error), by_others=by_others) from error
        except KeyboardInterrupt as error:  # in the process: by a signal from elsewhere, or by the end of all
            self._note_end("an interruption")
            raise TrainerLostError("interrupted", by_others=True) from error
        except Exception:
            self._note_end(None)
            raise
        self._note_end(None)
        return run

    def _note_end(self, how: str | None) -> None:
        if (words := self._jobs.note_end(self._log, how)) is not None:
            raise SearchError(words)

    def _start(self) -> Worker:
        answers, self._answers = os.pipe()
        try:
            with open(self._log, "ab", opener=open_regular) as log:
                starter, make = partial(fork_server, MODULES), packed_request("make", self._make)
                descriptors = [log.fileno(), answers]
                worker = self._worker = Worker(
                    self.name, starter, make, timeout_s=_START_S, look_s=POLL_S, descriptors=descriptors
                )
                worker.start()
        except (WorkerRefusedError, ConfigError) as error:
            raise SearchError(str(error)) from error
        finally:
            os.close(answers)
        worker.result(worker.receive())
        return worker

    def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.free()
            os.close(self._answers)
            self._worker = None


class _Training:
    """What a worker's process serves.

    Args:
        link: its descriptors are those of the log, and of the pipe with the answers of the search.
        env: id of the env.
        path: the import path of its factory, if it was registered in the search's process; otherwise the id.
    """

    def __init__(self, link: Link, env: str, path: str) -> None:
        link.write_to(link.descriptors[0])
        if path != env:
            register_env(env, env_factory(path))
        link.heartbeat.rest()  # a training may take as long as it does
        self._link = link

    def train(self, request: TrainingRequest, asks: bool) -> TrainedRun:
        """See `train_here`; with `asks`, the search decides whether the training goes on."""
        with interrupting():
            return train_here(replace(request, goes_on=self._goes_on if asks else None))

    def _goes_on(self, result: Result) -> bool:
        self._link.tell(result)
        return os.read(self._link.descriptors[1], 1) == b"+"
