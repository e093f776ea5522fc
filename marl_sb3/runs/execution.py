"""Train a run to its end, its stop condition, or a signal; save its policies, also after a failure."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.callbacks import CheckpointCallback, RewardHistogramCallback, StopAfterSteps, StopOnMetric, StopOnSignal
from marl_sb3.core.acting.by_agent import PolicyByAgent
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.training.callback import TrainingCallback
from marl_sb3.errors import EnvRaisedError, HookError, MarlSb3Error, NumericError, WorkerError, note
from marl_sb3.files.atomic import replaced_folder
from marl_sb3.league.league import League
from marl_sb3.results.result_log import last_result
from marl_sb3.runs.folder import LEAGUE, RunFolder, write_traceback
from marl_sb3.runs.logs import logs_of
from marl_sb3.runs.resume import Phase, phases_after
from marl_sb3.runs.run import Run, SavedRun
from marl_sb3.runs.start import MAX_ROLLBACKS, curricula_of, enter, evaluations_of, roll_back
from marl_sb3.runs.tracking import TrackerThread, tracking
from marl_sb3.types import PolicyID

_log = logging.getLogger(__name__)


def save_policies(run: Run, policies: PolicyByAgent | None = None) -> dict[PolicyID, Path]:
    """Write an SB3 zip for each policy; the folder is replaced atomically.

    Args:
        policies: those to write; None: the present ones of the run.

    Returns:
        The file of each policy.
    """
    folder = run.files.policies
    with replaced_folder(folder) as unfinished:
        paths = (policies or run.algorithm).save_policies(unfinished)
    return {policy_id: folder / path.name for policy_id, path in paths.items()}


def save_policies_of_complete(run: Run) -> dict[PolicyID, Path]:
    """Save the policies of a run whose last checkpoint is written: those that `evaluate` and `export` take.

    They may be those of an earlier checkpoint, which is better. If saving fails, the error says how to do it later.
    """
    try:
        name, run.checkpoint_why = run.files.checkpoints.choose() or (run.checkpoint, "")
        if name == run.checkpoint:
            return save_policies(run)
        chosen = SavedRun(run.files, run.config).policies(None, run.algorithm.env)
        run.checkpoint_why = chosen.checkpoint_why
        return save_policies(run, chosen)
    except Exception as error:
        again = f"python -m marl_sb3.export {run.files.shown} --checkpoint latest"
        note(error, "remedy", f"checkpoint {run.checkpoint} is complete: {again} writes the policies")
        raise


def try_to_save_policies(run: Run) -> None:
    """Save the policies of a failed run; if this fails too, only log it: the first error is the one to report."""
    if run.algorithm.iteration == 0:
        return
    if not run.algorithm.is_finite():
        _log.warning("the policies are not saved: their weights are not finite")
        return
    try:
        run.policy_files = save_policies(run)
    except Exception as error:  # on a full disk, torch raises various errors
        _log.warning("the policies are not saved: %s", error)


def execute(run: Run, callbacks: Sequence[BaseCallback] = ()) -> Run:
    """Train a prepared run to its end, its stop condition, or a signal; then save its policies.

    If the training fails, the policies are saved in their present state. The run is closed in any case.
    """
    algorithm = run.algorithm
    with ExitStack() as cleanup:
        cleanup.callback(run.close)
        evaluations = [cleanup.enter_context(closing(evaluation)) for evaluation in evaluations_of(run)]
        signals = cleanup.enter_context(StopOnSignal())
        stop = StopOnMetric(run.config.stop, [name for each in evaluations for name in each.metric_names(algorithm)])
        curriculum = curricula_of(run, [name for each in evaluations for name in each.metric_names(algorithm)])
        trackers = cleanup.enter_context(tracking(run))
        histograms = RewardHistogramCallback(run.config.tensorboard_agents)
        settings, folder = run.config.checkpoints, run.files.checkpoints.path

        def saved(name: str) -> None:
            run.checkpoint = name
            for each in trackers:
                each.save(folder / name)

        checkpoints = CheckpointCallback(
            folder,
            settings.every,
            settings.keep,
            settings.metric,
            higher_is_better=settings.mode == "max",
            at_start=run.config.on_nan == "rollback",
            on_saved=saved,
        )
        if run.recorder is not None:
            cleanup.callback(run.recorder.flush)
            callbacks = [*callbacks, run.recorder]
        others = [signals, histograms, *curriculum, *run.callbacks, *callbacks, _FolderIsThere(run.files), checkpoints]
        try:
            for phase in phases_after(algorithm.num_timesteps, run.config.n_timesteps, run.config.extensions):
                enter(run, phase)
                algorithm = run.algorithm
                if run.config.league.is_on and isinstance(algorithm.assignment, League):
                    algorithm.assignment.folder = run.folder / LEAGUE
                end = stop if phase.until is None else StopAfterSteps(phase.until)
                if phase.until is None and algorithm.iteration and algorithm.num_timesteps < phase.end:
                    stop.expect(last_result(run.folder))
                _learn(run, phase, [*evaluations, end, *others], trackers)
                if signals.received or algorithm.num_timesteps < phase.end:
                    checkpoints.rescue(within_iteration=signals.received is not None)  # if clients do not step
                    break
                algorithm.parts.callbacks.keep()
        except BaseException as error:
            run.files.require_there()  # otherwise saving would make the folder anew
            checkpoints.rescue(within_iteration=isinstance(error, (WorkerError, HookError)))
            try_to_save_policies(run)
            says_enough = isinstance(error, MarlSb3Error) and not isinstance(error, (EnvRaisedError, HookError))
            if isinstance(error, Exception) and not says_enough:  # others are interruptions
                try:
                    note(error, "traceback_file", str(run.files.as_shown(write_traceback(run.folder, error))))
                except OSError as another:  # a full disk, for example; the first error is the one to report
                    _log.warning("the traceback is not kept: %s", another)
            raise
        # Also if nothing was left to train: the process may have been killed after its last checkpoint.
        run.files.require_there()
        if algorithm.iteration > 0:
            run.policy_files = save_policies_of_complete(run)
    run.interrupted = signals.received is not None
    run.stopped_by = signals.received or stop.reached
    return run


def _learn(run: Run, phase: Phase, callbacks: list[BaseCallback], trackers: Sequence[TrackerThread]) -> None:
    """Train to the planned end; on a NaN, return to the latest checkpoint if `on_nan` is `rollback`."""
    rollbacks = 0
    while (left := phase.n_timesteps - run.algorithm.num_timesteps) > 0:
        try:
            with logs_of(run, [each.output for each in trackers]):
                run.algorithm.learn(left, callback=callbacks, reset_num_timesteps=False)
            return
        except NumericError as error:
            rollbacks += 1
            if run.config.on_nan != "rollback" or rollbacks > MAX_ROLLBACKS:
                raise
            roll_back(run, rollbacks, error)


class _FolderIsThere(TrainingCallback):
    """Ends the training if its folder was moved or deleted: the next checkpoint would make a new one."""

    def __init__(self, files: RunFolder) -> None:
        super().__init__()
        self._files = files

    def on_iteration_logged(self, result: Result) -> None:
        """Look for the folder; the checkpoints are written after this."""
        self._files.require_there()
