"""Trials as jobs: each is a run that reports its evaluations to Optuna and may be pruned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from marl_sb3.errors import is_disk_full
from marl_sb3.metrics import Result
from marl_sb3.runs.folder import TRACEBACK_FILE, write_traceback
from marl_sb3.storage.checkpoint_folder import checkpoints_of
from marl_sb3.training.callback import TrainingCallback
from marl_sb3.tuning import trial as key
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
