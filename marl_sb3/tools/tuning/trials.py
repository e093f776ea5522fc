"""The trainings of a search: trials, which report their evaluations to Optuna and may be pruned, and finalists."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from marl_sb3.core.metrics.names import Result
from marl_sb3.errors import ConfigError, is_disk_full
from marl_sb3.extensions.store.checkpoint_folder import checkpoints_of
from marl_sb3.runs.folder import TRACEBACK_FILE, remove_run, write_traceback
from marl_sb3.tools.tuning import trial as key
from marl_sb3.tools.tuning.finals import race_of
from marl_sb3.tools.tuning.population import copy_run, enqueue_generation
from marl_sb3.tools.tuning.search import NOT_TOGETHER, Search
from marl_sb3.tools.tuning.study import TrialQueue, TuneStudy
from marl_sb3.tools.tuning.trial import failure_text, states
from marl_sb3.tools.tuning.workers import (
    SearchError,
    Train,
    Trainer,
    TrainerLostError,
    TrainingRequest,
    run_jobs,
    train_here,
)

_log = logging.getLogger(__name__)

_MAX_FIRST_FAILURES = 5  # if none of these succeeds, the cause is not the settings
_LEAST_ALIKE = 5  # if all trials, and no fewer than these, have the same value, no later one will be better
_OPPOSED = "opposed"  # attribute of a trial whose agents' returns oppose each other: in which way
_DOUBT = "doubt"  # attribute of a trial that does not tell whether they do: why

Watcher = Callable[[TuneStudy], None]


def run_trials(
    study: TuneStudy, workers: int = 1, watch: Watcher | None = None, trainer: Trainer | None = None
) -> None:
    """Run all trials of a study; see `run_jobs`.

    Args:
        watch: called twice a second and at the end.

    Raises:
        ConfigError: also if the objective does not tell how good policies are.
        SearchError: also if every trial fails.
    """
    before = {trial.number for trial in study.trials if trial.state.is_finished()}

    def look() -> None:
        if watch is not None:
            watch(study)
        _require_sense(study)
        _require_any_success(study, before)

    if study.search.is_population:
        while enqueue_generation(study):
            run_jobs(study, study.queue, run_trial, workers, look, trainer)
    else:
        run_jobs(study, study.queue, run_trial, workers, look, trainer)
    for doubt in dict.fromkeys(trial.user_attrs[_DOUBT] for trial in study.trials if _DOUBT in trial.user_attrs):
        _log.warning(
            "%s: it may be that --objective %s does not tell how good policies are", doubt, study.search.objective
        )


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


def _require_sense(study: TuneStudy) -> None:
    """End a search whose objective does not tell how good policies are.

    Raises:
        ConfigError: the agents' returns oppose each other, so that their sum or least means nothing; or all evaluations
            of the first trials have the same value.
    """
    trials = study.trials
    n_complete = sum(trial.state == TrialState.COMPLETE for trial in trials)
    only = study.only_value()
    opposed = next((trial.user_attrs[_OPPOSED] for trial in trials if _OPPOSED in trial.user_attrs), None)
    longer = ""
    if opposed is not None:
        words = f"does not tell how good policies are: {opposed}"
    elif n_complete >= _LEAST_ALIKE and only is not None:
        longer = "; or more --timesteps"
        words = f"tells no settings apart: all {n_complete} trials have the same value, {only:g}"
    else:
        return
    raise ConfigError(
        f"--objective {study.search.objective} {words}; accepted: another one, such as against_random, an agent or a "
        f"policy, or several with commas between them{longer}",
        key="objective",
    )


def require_any_complete(study: TuneStudy) -> None:
    """Refuse a finished search without a complete trial."""
    if study.completed():
        return
    trials = study.trials
    last = next(filter(None, map(failure_text, reversed(trials))), "no error")
    raise SearchError(f"no trial was trained to its end: {states(trials)}; the last error: {last}")


@dataclass
class TrialReport:
    """Reports the objective of each evaluation to Optuna, which may prune the trial.

    With several objectives nothing is reported, because Optuna prunes no such trials.
    """

    search: Search
    trial: optuna.trial.Trial
    interval: int  # env steps between evaluations
    last: int | None = None  # the number of the evaluation with which the trial ends; None: with its training
    pruned: bool = False
    reported: int = 0  # the number of the latest evaluation

    def goes_on(self, result: Result) -> bool:
        """Report the result of an evaluation; returns whether the training goes on."""
        objective, *others = self.search.objectives()
        if others or (value := objective.value(result)) is None:
            return True
        env_steps = result["num_env_steps_sampled_lifetime"]
        number = env_steps // self.interval
        if number > self.reported:  # after a rollback, an evaluation is repeated
            self.reported = number
            self.trial.report(value, number)
            self.trial.set_user_attr(f"{key.ENV_STEPS}_{number}", env_steps)
        # After the last evaluation, pruning would save nothing.
        self.pruned = number < self.search.evaluations and self.trial.should_prune()
        return not self.pruned and (self.last is None or number < self.last)


def run_trial(study: TuneStudy, trial: optuna.trial.Trial, train: Train = train_here) -> None:
    """Train a trial and store its outcome in the study.

    Args:
        train: trains its run.

    Raises:
        KeyboardInterrupt: a signal has ended the training in this process.
        OSError: the disk is full, or the study cannot be written to.
    """
    folder = study.folder_of(trial)

    def begun() -> tuple[TrainingRequest, TrialReport]:
        search, stored = study.search, trial.user_attrs
        parent = study.trials[stored[key.PARENT]] if key.PARENT in stored else None
        seed = search.trial_seed(stored[key.INDEX]) if parent is None else parent.user_attrs[key.SEED]
        settings = study.space.suggest(trial)
        config = search.trial_config(settings, seed)
        is_first = stored.get(key.MEMBER, stored[key.INDEX]) == 0
        watches = is_first and any(each.of in NOT_TOGETHER for each in search.objectives())
        last = stored[key.GENERATION] + 1 if stored.get(key.GOES_ON) else None
        report = TrialReport(search, trial, config.evaluation.interval, last)
        if parent is not None:
            copy_run(study.folder_of(parent), folder, search.env)
        changed = None if parent is None else settings
        return TrainingRequest(config, folder, study.factory, report.goes_on, watches, changed), report

    _run(study, study.queue, trial, folder, begun, train)


def run_final(study: TuneStudy, training: optuna.trial.Trial, train: Train = train_here) -> None:
    """Train a finalist or the preset with a fresh seed and store the outcome; see `run_trial`."""
    number, index = (training.user_attrs[name] for name in key.OF_A_FINAL)
    folder = study.folder / key.final_folder(number, index)
    remove_run(folder, study.search.env)  # left by an interrupted training

    def begun() -> tuple[TrainingRequest, None]:
        settings = {} if number == key.PRESET else study.settings_of(study.trials[number])
        return TrainingRequest(study.search.final_config(settings, index), folder, study.factory), None

    _run(study, study.finals, training, folder, begun, train)


def _run(
    study: TuneStudy,
    queue: TrialQueue,
    trial: optuna.trial.Trial,
    folder: Path,
    begun: Callable[[], tuple[TrainingRequest, TrialReport | None]],
    train: Train,
) -> None:
    """Train the run of a claimed trial and tell its queue the outcome."""
    try:
        trial.set_user_attr(key.FOLDER, str(folder))
        request, report = begun()
        trial.set_user_attr(key.SEED, request.config.seed)
        run = train(request)
        if run.opposed is not None:
            trial.set_user_attr(_OPPOSED, run.opposed)
            raise ConfigError(run.opposed, key="objective")
        if run.doubt is not None:
            trial.set_user_attr(_DOUBT, run.doubt)
        result: Mapping[str, Any] = run.result or {}
        figures = {
            key.ITERATIONS: result.get("iteration"),
            key.ENV_STEPS: result.get("num_env_steps_sampled_lifetime"),
            key.SECONDS: result.get("time_total_s"),
            key.CPU_SECONDS: run.cpu_seconds,
            key.RETURN: result.get("env_runners", {}).get("episode_return_mean"),
            key.CHECKPOINT: run.checkpoint and str(checkpoints_of(folder).path / run.checkpoint),
        }
        for name, value in figures.items():
            trial.set_user_attr(name, value)
        if report is not None and report.pruned:
            queue.optuna.tell(trial, state=TrialState.PRUNED)
        else:
            queue.optuna.tell(trial, [each.of_training(run.results) for each in study.search.objectives()])
    except TrainerLostError as lost:
        queue.requeue(trial.number, key.INTERRUPTED if lost.by_others else key.KILLED)
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SearchError)) or is_disk_full(error):
            queue.requeue(trial.number, key.INTERRUPTED)
            raise
        # Any other, also SystemExit, is a result, and the search continues.
        write_traceback(folder, error)
        words = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode("utf-8")
        trial.set_user_attr(key.ERROR, words)
        queue.optuna.tell(trial, state=TrialState.FAIL)


# --- Finalists -------------------------------------------------------------------------------------------------------


def run_finals(
    study: TuneStudy,
    workers: int = 1,
    watch: Callable[[int, int], None] | None = None,
    trainer: Trainer | None = None,
) -> None:
    """Let the best trials race against the preset, as `plan_race` has planned; see `run_jobs`.

    Args:
        watch: called twice a second with the numbers of finished and of all trainings, as far as they are known.
    """

    def look() -> None:
        if watch is not None:
            known = study.finals.latest(*key.OF_A_FINAL).values()
            watch(sum(training.state.is_finished() for training in known), len(known))

    while enqueue_missing(study):
        run_jobs(study, study.finals, run_final, workers, look, trainer)


def enqueue_missing(study: TuneStudy) -> bool:
    """Enqueue the trainings that the race wants next and that are not enqueued yet; False if the race is over."""
    race = race_of(study)
    missing = [] if race is None else race.missing()
    known = study.finals.latest(*key.OF_A_FINAL)  # what is missing, has not finished if it is known
    for candidate, index in missing:
        number = key.PRESET if candidate.trial is None else candidate.trial
        if (number, index) not in known:
            study.finals.enqueue({}, **{key.CANDIDATE: number, key.SEED_INDEX: index})
    return bool(missing)
