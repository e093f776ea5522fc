"""One trial: a run like any other, which reports its evaluations and may be given up."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from marl_sb3.experiment import Run, execute, prepare
from marl_sb3.learners.callback import MultiAgentCallback
from marl_sb3.metrics import Result
from marl_sb3.tuning.objective import Objective
from marl_sb3.tuning.study import ERROR, FOLDER, INDEX, INTERRUPTED, SEED, StudyOfTrials

TRACEBACK_FILE = "traceback.txt"


class ReportEvaluations(MultiAgentCallback):
    """Tells Optuna the objective of every evaluation, and ends the training where it says so.

    Args:
        trial: Optuna's.
        objective: what is made large or small.

    Attributes:
        values: of the evaluations so far.
        pruned: whether the trial has been given up.
    """

    def __init__(self, trial: optuna.trial.Trial, objective: Objective) -> None:
        super().__init__()
        self._trial = trial
        self._objective = objective
        self.values: list[float] = []
        self.pruned = False

    def on_iteration_end(self, result: Result) -> bool:
        """Report, if the iteration was evaluated."""
        value = self._objective.value(result) if "evaluation" in result else None
        if value is None:
            return True
        self.values.append(value)
        self._trial.report(value, len(self.values))
        self._trial.set_user_attr(f"env_steps_{len(self.values)}", result["num_env_steps_sampled_lifetime"])
        self.pruned = self._trial.should_prune()
        return not self.pruned


def run_trial(study: StudyOfTrials, trial: optuna.trial.Trial) -> bool:
    """Train a trial and tell the study what came out, whatever it was.

    Returns:
        False if it was interrupted: the worker should end.

    Raises:
        OSError: the study cannot be written to.
    """
    folder = study.folder_of(trial)
    report = ReportEvaluations(trial, study.search.parsed_objective())
    try:
        run = _train(study, trial, folder, report)
        if run.interrupted:
            study.give_back(trial.number, INTERRUPTED)
            return False
        _note_run(trial, run)
        if report.pruned:
            study.optuna.tell(trial, state=TrialState.PRUNED)
        else:
            study.optuna.tell(trial, study.search.parsed_objective().final(report.values))
    except Exception as error:  # a trial that fails is a result: the search goes on
        note_failure(folder, error)
        trial.set_user_attr(ERROR, f"{type(error).__name__}: {error}")
        study.optuna.tell(trial, state=TrialState.FAIL)
    return True


def _train(study: StudyOfTrials, trial: optuna.trial.Trial, folder: Path, report: ReportEvaluations) -> Run:
    seed = study.search.trial_seed(trial.user_attrs[INDEX])
    trial.set_user_attr(FOLDER, str(folder))
    config = study.search.trial_config(study.space.suggest(trial), seed)
    trial.set_user_attr(SEED, config.seed)
    return execute(prepare(config, folder, study.factory), [report])


def _note_run(trial: optuna.trial.Trial, run: Run) -> None:
    result: dict[str, Any] = run.result or {}
    trial.set_user_attr("iterations", result.get("iteration"))
    trial.set_user_attr("env_steps", result.get("num_env_steps_sampled_lifetime"))
    trial.set_user_attr("seconds", result.get("time_total_s"))
    trial.set_user_attr("return", result.get("env_runners", {}).get("episode_return_mean"))
    trial.set_user_attr("checkpoint", run.checkpoint and str(run.files.checkpoints.path / run.checkpoint))


def note_failure(folder: Path, error: Exception) -> None:
    """Keep the traceback of a training that failed, in its run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(traceback.format_exception(error))
    (folder / TRACEBACK_FILE).write_text(text, encoding="utf-8")
