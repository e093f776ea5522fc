"""Trials and confirmations as jobs.

A trial is a run that reports its evaluations to Optuna and may be pruned. The best value of many trials is partly luck;
therefore the best ones and the preset are trained again, with fresh seeds.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from filelock import BaseFileLock, FileLock, Timeout
from optuna.trial import TrialState

from marl_sb3.errors import is_disk_full
from marl_sb3.metrics import Result
from marl_sb3.runs.folder import TRACEBACK_FILE, write_traceback
from marl_sb3.storage.checkpoint_folder import checkpoints_of
from marl_sb3.training.callback import TrainingCallback
from marl_sb3.tuning import trial as key
from marl_sb3.tuning.confirmed import Candidate, Outcome, candidate_folder, confirmed, read_outcome, write_outcome
from marl_sb3.tuning.jobs.workers import (
    Job,
    QueueMaker,
    SearchError,
    Train,
    TrainedRun,
    Trainer,
    TrainerLostError,
    run_jobs,
    train_here,
)
from marl_sb3.tuning.objective import Objective
from marl_sb3.tuning.search import Search
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial import failure_text, states

_MAX_FIRST_FAILURES = 5  # if none of these succeeds, the cause is not the settings

Watcher = Callable[[TuneStudy], None]


def run_trials(
    study: TuneStudy, workers: int = 1, watch: Watcher | None = None, trainer: Trainer | None = None
) -> None:
    """Run all trials of a study; killed workers are replaced, and their trials tried once again.

    Args:
        workers: the number of processes; the cores are divided among them.
        watch: called twice a second and at the end.
        trainer: trains on a cluster; None: processes of this machine do.

    Raises:
        ConfigError: another process is running this study, or workers cannot import the env.
        SearchError: workers cannot be started, or every trial fails.
        KeyboardInterrupt: raised again after all workers have ended.
    """
    before = {trial.number for trial in study.trials if trial.state.is_finished()}

    def look() -> None:
        if watch is not None:
            watch(study)
        _require_any_success(study, before)

    run_jobs(study, TrialQueue(study), workers, look, trainer)


def _require_any_success(study: TuneStudy, before: Collection[int]) -> None:
    """End a search whose first trials all fail; trials of an earlier search, `before`, are ignored."""
    trials = [trial for trial in study.trials if trial.state.is_finished() and trial.number not in before]
    failed = [trial for trial in trials if trial.user_attrs.get(key.ERROR, key.INTERRUPTED) != key.INTERRUPTED]
    if len(failed) >= _MAX_FIRST_FAILURES and len(failed) == len(trials):
        last = failed[-1]
        killed = last.user_attrs[key.ERROR] == key.KILLED
        log = study.folder / "workers" / f"{last.user_attrs.get(key.WORKER)}.log"
        where = log if killed else study.folder_of(last) / TRACEBACK_FILE
        words = f"all {len(failed)} trials have failed, the last one with {last.user_attrs[key.ERROR]}"
        raise SearchError(f"{words}; see {where}")


def require_any_complete(study: TuneStudy) -> None:
    """Refuse a finished search without a complete trial."""
    if study.completed():
        return
    trials = study.trials
    last = next(filter(None, map(failure_text, reversed(trials))), "no error")
    raise SearchError(f"no trial was trained to its end: {states(trials)}; the last error: {last}")


class TrialQueue:
    """The trials of a study as a `JobQueue`."""

    def __init__(self, study: TuneStudy) -> None:
        self.again: QueueMaker = TrialQueue
        self._study = study
        self.n_done = study.n_done
        self.in_flight = study.in_flight
        self.requeue_dead = study.requeue_dead
        self.is_waiting = study.is_waiting

    def claim(self, worker: str, train: Train) -> Job | None:
        """See `JobQueue.claim`."""
        trial = self._study.next_trial(worker)
        return None if trial is None else partial(run_trial, self._study, trial, train)


class ReportEvaluations(TrainingCallback):
    """Report the objective of every evaluation to Optuna, and stop the training if Optuna prunes the trial.

    Args:
        interval: env steps between evaluations.
        evaluations: the number of evaluations; after the last one, pruning would save nothing.
    """

    def __init__(self, trial: optuna.trial.Trial, objective: Objective, interval: int, evaluations: int) -> None:
        super().__init__()
        self._trial = trial
        self._objective = objective
        self._interval = interval
        self._evaluations = evaluations
        self._reported = 0
        self.pruned = False

    def on_iteration_end(self, result: Result) -> bool:
        """Report the result if it has an evaluation."""
        value = self._objective.value(result) if "evaluation" in result else None
        if value is None:
            return True
        env_steps = result["num_env_steps_sampled_lifetime"]
        number = env_steps // self._interval
        if number > self._reported:  # after a rollback, an evaluation is repeated
            self._reported = number
            self._trial.report(value, number)
            self._trial.set_user_attr(f"{key.ENV_STEPS}_{number}", env_steps)
        self.pruned = number < self._evaluations and self._trial.should_prune()
        return not self.pruned


def run_trial(study: TuneStudy, trial: optuna.trial.Trial, train: Train = train_here) -> bool:
    """Train a trial and store its outcome in the study.

    Args:
        train: trains its run.

    Returns:
        False if it was interrupted: the worker should end.

    Raises:
        OSError: the disk is full, or the study cannot be written to.
    """
    folder = study.folder_of(trial)
    try:
        run, pruned = _train(study, trial, folder, train)
        if run.interrupted:
            study.requeue(trial.number, key.INTERRUPTED)
            return False
        _store_figures(trial, run)
        if pruned:
            study.optuna.tell(trial, state=TrialState.PRUNED)
        else:
            study.optuna.tell(trial, objective_of(study.search, run))
    except KeyboardInterrupt:  # before the training, which would have finished its iteration
        study.requeue(trial.number, key.INTERRUPTED)
        raise
    except TrainerLostError:
        study.requeue(trial.number, key.KILLED)
    except (Exception, SystemExit) as error:  # a failed trial is a result, and the search continues
        if is_disk_full(error):
            study.requeue(trial.number, key.INTERRUPTED)
            raise
        trial.set_user_attr(key.ERROR, store_failure(folder, error))
        study.optuna.tell(trial, state=TrialState.FAIL)
    return True


def _train(study: TuneStudy, trial: optuna.trial.Trial, folder: Path, train: Train) -> tuple[TrainedRun, bool]:
    """Returns the run and whether it was pruned."""
    search = study.search
    trial.set_user_attr(key.FOLDER, str(folder))
    config = search.trial_config(study.space.suggest(trial), search.trial_seed(trial.user_attrs[key.INDEX]))
    trial.set_user_attr(key.SEED, config.seed)
    report = ReportEvaluations(trial, search.parsed_objective(), config.evaluation.interval, search.evaluations)
    return train(config, folder, study.factory, [report]), report.pruned


def objective_of(search: Search, run: TrainedRun) -> float:
    """The objective of a complete training."""
    objective = search.parsed_objective()
    values = [objective.value(result) for result in run.results if "evaluation" in result]
    return objective.final([value for value in values if value is not None])


def _store_figures(trial: optuna.trial.Trial, run: TrainedRun) -> None:
    result: Mapping[str, Any] = run.result or {}
    trial.set_user_attr(key.ITERATIONS, result.get("iteration"))
    trial.set_user_attr(key.ENV_STEPS, result.get("num_env_steps_sampled_lifetime"))
    trial.set_user_attr(key.SECONDS, result.get("time_total_s"))
    trial.set_user_attr(key.RETURN, result.get("env_runners", {}).get("episode_return_mean"))
    trial.set_user_attr(key.CHECKPOINT, run.checkpoint and str(checkpoints_of(run.folder).path / run.checkpoint))


def store_failure(folder: Path, error: BaseException) -> str:
    """Write the traceback of a failed training into its run folder; returns the error as text."""
    write_traceback(folder, error)
    return f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode("utf-8")


# --- Confirmations ---------------------------------------------------------------------------------------------------


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
                return partial(_train_candidate, self._study, training, lock, train)
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

    def requeue_dead(self, why: str = key.KILLED) -> None:
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


def _train_candidate(study: TuneStudy, training: _Training, lock: BaseFileLock, train: Train) -> bool:
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
