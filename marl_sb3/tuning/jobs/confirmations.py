"""Confirmations as jobs: train the best trials and the preset again with fresh seeds.

The best value of many trials is partly luck; values of fresh seeds are not.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from marl_sb3.errors import is_disk_full
from marl_sb3.tuning.confirmed import Candidate, Outcome, candidate_folder, confirmed, read_outcome, write_outcome
from marl_sb3.tuning.jobs.trials import objective_of, store_failure
from marl_sb3.tuning.jobs.workers import Job, QueueMaker, Train, Trainer, TrainerLostError, run_jobs
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial import KILLED


def confirm(
    study: TuneStudy,
    best: int = 1,
    seeds: int = 10,
    workers: int = 1,
    watch: Callable[[int, int], None] | None = None,
    trainer: Trainer | None = None,
) -> list[Candidate]:
    """Train the preset and the best trials with the same fresh seeds; finished trainings are not repeated.

    Args:
        watch: called twice a second with the numbers of finished and of all trainings.
        trainer: trains on a cluster; None: processes of this machine do.

    Returns:
        See `confirmed`.

    Raises:
        ConfigError: another process is running this study, or workers cannot import the env.
        SearchError: worker processes cannot be started.
        KeyboardInterrupt: raised again after all workers have ended.
    """
    trials = [trial.number for trial in study.completed()[:best]]
    if not trials:
        return []
    queue = ConfirmationQueue(study, trials, seeds)

    def look() -> None:
        if watch is not None:
            watch(queue.n_done(), len(queue.trainings))

    run_jobs(study, queue, workers, look, trainer)
    return confirmed(study)


@dataclass(frozen=True)
class _Training:
    """The training of one candidate, a trial or (None) the preset, with one fresh seed."""

    trial: int | None
    seed_index: int
    folder: Path

    def taken(self) -> BaseFileLock | None:
        """Take the lock of a worker that trains, which the system releases if it dies; None: another worker has it."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder.with_name(f"{self.folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return None
        return lock

    def is_free(self) -> bool:
        """Whether no worker holds the lock."""
        lock = self.taken()
        if lock is not None:
            lock.release()
        return lock is not None


class ConfirmationQueue:
    """Trainings of the preset and of trials with fresh seeds, as a `JobQueue`."""

    def __init__(self, study: TuneStudy, trials: Sequence[int], seeds: int) -> None:
        self.again: QueueMaker = partial(ConfirmationQueue, trials=trials, seeds=seeds)
        self.trainings = _trainings(study, trials, seeds)
        self._study = study

    def claim(self, worker: str, train: Train) -> Job | None:
        """See `JobQueue.claim`: a worker claims a training by taking its lock."""
        for training in self._not_done():
            lock = training.taken()
            if lock is None:
                continue
            if read_outcome(training.folder) is None:  # still
                return partial(_train, self._study, training, lock, train)
            lock.release()
        return None

    def _not_done(self) -> list[_Training]:
        return [training for training in self.trainings if read_outcome(training.folder) is None]

    def n_done(self) -> int:
        """See `JobQueue.n_done`."""
        return len(self.trainings) - len(self._not_done())

    def in_flight(self) -> list[str]:
        """See `JobQueue.in_flight`."""
        return [str(training.folder) for training in self._not_done() if not training.is_free()]

    def requeue_dead(self, why: str = KILLED) -> None:
        """Does nothing: the system has released the locks of dead workers."""

    def is_waiting(self) -> bool:
        """See `JobQueue.is_waiting`."""
        return any(training.is_free() for training in self._not_done())


def _trainings(study: TuneStudy, trials: Sequence[int], seeds: int) -> list[_Training]:
    """The trainings in order: seed by seed, the preset first, so that an interrupted run compares equal numbers."""
    return [
        _Training(trial, index, candidate_folder(study, trial) / f"seed-{index:02d}")
        for index in range(seeds)
        for trial in (None, *trials)
    ]


def _train(study: TuneStudy, training: _Training, lock: BaseFileLock, train: Train) -> bool:
    """Train a candidate with a seed, store the outcome and release the lock; returns False if interrupted."""
    search = study.search
    try:
        settings = {} if training.trial is None else study.space.settings(study.trials[training.trial].params)
        seed = search.fresh_seed(training.seed_index)
        config = search.trial_config(settings, seed)
        # The evaluation episodes are new, too: the winner was selected on those of the search.
        config = config.changed({"evaluation.seed": search.fresh_evaluation_seed(training.seed_index)})
        shutil.rmtree(training.folder, ignore_errors=True)  # left by an interrupted training
        try:
            run = train(config, training.folder, study.factory, [])
            if run.interrupted:
                return False
            outcome = Outcome(seed, objective_of(search, run))
        except TrainerLostError:
            return True  # without an outcome, it is claimed again
        except (Exception, SystemExit) as error:  # a failure is a result, too
            if is_disk_full(error):
                raise
            outcome = Outcome(seed, error=store_failure(training.folder, error))
        write_outcome(training.folder, outcome)
        return True
    finally:
        lock.release()
