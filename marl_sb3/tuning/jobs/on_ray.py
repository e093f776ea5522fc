"""Run the jobs of a search on a Ray cluster; the study, and in the end every run folder, stay on this machine.

Each worker is a thread of this process: it claims a job, sends the training to the cluster, and stores the outcome.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.config import TrainConfig
from marl_sb3.config.ray import RaySettings
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.errors import ConfigError
from marl_sb3.metrics import Result
from marl_sb3.runners.ray.connection import Connection
from marl_sb3.runners.shards.faults import raise_fault
from marl_sb3.runners.shards.pool import differing
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.reader import read_results
from marl_sb3.training.callback import MultiAgentCallback
from marl_sb3.tuning.jobs.queue import JobQueue, work
from marl_sb3.tuning.jobs.remote import Desk, Outcome, process_versions, train_remotely, unpack
from marl_sb3.tuning.jobs.training import TrainedRun, TrainerLostError
from marl_sb3.tuning.study import TuneStudy

_POLL_S = 0.2


@dataclass(frozen=True)
class FetchedRun:
    """A run that was trained on the cluster; see `TrainedRun`."""

    files: RunFolder
    result: Mapping[str, Any] | None
    checkpoint: str | None
    interrupted: bool

    @property
    def results(self) -> list[Result]:
        """The metrics of all iterations."""
        return read_results(self.files.path)


class RayTrainer:
    """Trains runs on a Ray cluster.

    Args:
        settings: `runners` is the number of trainings at the same time.

    Attributes:
        stopped: set to interrupt all trainings.

    Raises:
        ConfigError: there is no such cluster, it has other versions, or it gives no process the CPUs.
    """

    def __init__(self, settings: RaySettings) -> None:
        self.stopped = threading.Event()
        self._connection = Connection(settings, settings.runners or 1)
        self._ray = self._connection.ray
        self._options = {**self._connection.options, "max_retries": 0}
        try:
            self._require_processes(settings)
            self._desk = self._ray.remote(Desk).options(num_cpus=0).remote()
        except BaseException:
            self.close()
            raise

    def _require_processes(self, settings: RaySettings) -> None:
        asked = self._ray.remote(process_versions).options(**self._options).remote()
        try:
            fault = differing(self._ray.get(asked, timeout=settings.start_timeout_s))
        except self._ray.exceptions.GetTimeoutError as error:
            raise ConfigError(
                f"no process has started within {settings.start_timeout_s:g} s; accepted: at most the CPUs of a node "
                f"for each trial, not {settings.num_cpus:g}",
                key="ray",
            ) from error
        except self._ray.exceptions.RayError as error:
            raise ConfigError(f"a process of the cluster cannot start: {error}", key="ray") from error
        if fault is not None:
            raise ConfigError(f"a process of the cluster has {fault}", key="ray")

    def train(
        self, config: TrainConfig, folder: Path, factory: EnvFactory | None, callbacks: Sequence[BaseCallback]
    ) -> TrainedRun:
        """See `Train`; callbacks are called here, with the results of evaluations."""
        job = secrets.token_hex(8)
        remote = self._ray.remote(train_remotely).options(**self._options)
        training = remote.remote(config, factory, self._desk, job)
        watching = [each for each in callbacks if isinstance(each, MultiAgentCallback)]
        while not self._ray.wait([training], timeout=_POLL_S)[0]:
            if self.stopped.is_set():
                self._ray.cancel(training, force=True)
                return FetchedRun(RunFolder(folder), None, None, True)
            self._answer(job, watching)
        return _fetched(self._outcome(training), folder)

    def _answer(self, job: str, watching: Sequence[MultiAgentCallback]) -> None:
        result = self._ray.get(self._desk.question.remote(job))
        if result is not None:
            answers = [each.on_iteration_end(result) for each in watching]
            self._ray.get(self._desk.answer.remote(job, all(answers)))

    def _outcome(self, training: Any) -> Outcome:
        try:
            outcome: Outcome = self._ray.get(training)
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            raise TrainerLostError(f"the process of the cluster has ended: {type(error).__name__}") from error
        return outcome

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def _fetched(outcome: Outcome, folder: Path) -> FetchedRun:
    shutil.rmtree(folder, ignore_errors=True)  # left by a process that has died
    unpack(outcome.folder, folder)
    if outcome.fault is not None:
        raise_fault(outcome.fault)
    return FetchedRun(RunFolder(folder), outcome.result, outcome.checkpoint, outcome.interrupted)


def work_on_ray(study: TuneStudy, queue: JobQueue, settings: RaySettings, look: Callable[[], None]) -> None:
    """Run all jobs of a queue on a cluster.

    Args:
        settings: `runners` is the number of trainings at the same time.
        look: called several times a second.

    Raises:
        ConfigError: see `RayTrainer`.
        KeyboardInterrupt: raised again after all trainings have been interrupted.
    """
    trainer = RayTrainer(settings)
    queue.train = trainer.train
    threads = [_Worker(study, queue, trainer) for _ in range(settings.runners or 1)]
    try:
        queue.requeue_dead()
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(_POLL_S)
            look()
    finally:
        trainer.stopped.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        trainer.close()
    for thread in threads:
        if thread.error is not None:
            raise thread.error


class _Worker(threading.Thread):
    """Claims jobs one after the other until there are none left.

    Attributes:
        error: what ended it; None if nothing did.
    """

    def __init__(self, study: TuneStudy, queue: JobQueue, trainer: RayTrainer) -> None:
        super().__init__(daemon=True)
        self._study, self._queue, self._trainer = study, queue, trainer
        self.error: BaseException | None = None

    def run(self) -> None:
        """Work."""
        name = f"ray-{os.getpid()}-{secrets.token_hex(2)}"
        try:
            with self._study.working(name):
                work(self._queue.of_thread(), name, is_wanted=lambda: not self._trainer.stopped.is_set())
        except BaseException as error:  # raised again in the main thread
            self.error = error
            self._trainer.stopped.set()
