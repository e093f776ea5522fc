"""One trial: a run like any other, which reports its evaluations and may be given up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from marl_sb3.errors import is_disk_full
from marl_sb3.metrics import Result
from marl_sb3.runs.execute import execute
from marl_sb3.runs.folder import write_traceback
from marl_sb3.runs.prepare import prepare
from marl_sb3.runs.run import Run
from marl_sb3.training.callback import MultiAgentCallback
from marl_sb3.tuning.jobs import Job
from marl_sb3.tuning.objective import Objective
from marl_sb3.tuning.search import Search
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial_attributes import ERROR, FOLDER, INDEX, INTERRUPTED, SEED


class TrialQueue:
    """The trials of a study as a `JobQueue`."""

    arguments = ("trials",)

    def __init__(self, study: TuneStudy) -> None:
        self._study = study
        self.n_done = study.n_done
        self.in_flight = study.in_flight
        self.requeue_dead = study.requeue_dead
        self.is_waiting = study.is_waiting

    def claim(self, worker: str) -> Job | None:
        """See `JobQueue.claim`."""
        trial = self._study.next_trial(worker)
        return None if trial is None else _TrialJob(self._study, trial)


@dataclass(frozen=True)
class _TrialJob:
    study: TuneStudy
    trial: optuna.trial.Trial

    def run(self) -> bool:
        return run_trial(self.study, self.trial)


class ReportEvaluations(MultiAgentCallback):
    """Tells Optuna the objective of every evaluation, and ends the training where it says so.

    Args:
        trial: Optuna's.
        objective: what is made large or small.
        interval: env steps from one evaluation to the next.
        evaluations: how many there are: after the last of them there is nothing to be spared.

    Attributes:
        pruned: whether the trial has been given up.
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
        """Report, if the iteration was evaluated."""
        value = self._objective.value(result) if "evaluation" in result else None
        if value is None:
            return True
        env_steps = result["num_env_steps_sampled_lifetime"]
        number = env_steps // self._interval
        if number > self._reported:  # a training that has been rolled back comes by here again
            self._reported = number
            self._trial.report(value, number)
            self._trial.set_user_attr(f"env_steps_{number}", env_steps)
        self.pruned = number < self._evaluations and self._trial.should_prune()
        return not self.pruned


def run_trial(study: TuneStudy, trial: optuna.trial.Trial) -> bool:
    """Train a trial and tell the study what came out, whatever it was.

    Returns:
        False if it was interrupted: the worker should end.

    Raises:
        OSError: the disk is full, or the study cannot be written to.
    """
    folder = study.folder_of(trial)
    try:
        run, pruned = _train(study, trial, folder)
        if run.interrupted:
            study.requeue(trial.number, INTERRUPTED)
            return False
        _note_run(trial, run)
        if pruned:
            study.optuna.tell(trial, state=TrialState.PRUNED)
        else:
            study.optuna.tell(trial, objective_of(study.search, run))
    except (Exception, SystemExit) as error:  # a trial that fails is a result: the search goes on
        if is_disk_full(error):
            study.requeue(trial.number, INTERRUPTED)
            raise
        trial.set_user_attr(ERROR, note_failure(folder, error))
        study.optuna.tell(trial, state=TrialState.FAIL)
    return True


def _train(study: TuneStudy, trial: optuna.trial.Trial, folder: Path) -> tuple[Run, bool]:
    """The run, and whether it was given up."""
    search = study.search
    trial.set_user_attr(FOLDER, str(folder))
    config = search.trial_config(study.space.suggest(trial), search.trial_seed(trial.user_attrs[INDEX]))
    trial.set_user_attr(SEED, config.seed)
    report = ReportEvaluations(trial, search.parsed_objective(), config.evaluation.interval, search.evaluations)
    return execute(prepare(config, folder, study.factory), [report]), report.pruned


def objective_of(search: Search, run: Run) -> float:
    """The objective of a training that has come to its end.

    Raises:
        ConfigError: no evaluation told it.
    """
    objective = search.parsed_objective()
    values = [objective.value(result) for result in run.results if "evaluation" in result]
    return objective.final([value for value in values if value is not None])


def _note_run(trial: optuna.trial.Trial, run: Run) -> None:
    result: dict[str, Any] = run.result or {}
    trial.set_user_attr("iterations", result.get("iteration"))
    trial.set_user_attr("env_steps", result.get("num_env_steps_sampled_lifetime"))
    trial.set_user_attr("seconds", result.get("time_total_s"))
    trial.set_user_attr("return", result.get("env_runners", {}).get("episode_return_mean"))
    trial.set_user_attr("checkpoint", run.checkpoint and str(run.files.checkpoints.path / run.checkpoint))


def note_failure(folder: Path, error: BaseException) -> str:
    """Keep the traceback of a training that failed, in its run folder; returns the error in words."""
    write_traceback(folder, error)
    return f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode("utf-8")
