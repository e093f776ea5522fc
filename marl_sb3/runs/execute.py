"""Train a run to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.callbacks import RewardHistogramCallback, StopOnMetric, StopOnSignal
from marl_sb3.callbacks.checkpoint import CheckpointCallback
from marl_sb3.callbacks.stop import StopAfterSteps
from marl_sb3.config.extensions import Phase, phases_after
from marl_sb3.errors import NumericError
from marl_sb3.metrics import Result
from marl_sb3.runs.evaluations import evaluation_metrics, evaluations_of
from marl_sb3.runs.logs.writers import logs_of
from marl_sb3.runs.rescue import keep_traceback, save_policies_of_complete, try_to_save_policies
from marl_sb3.runs.rollback import MAX_ROLLBACKS, roll_back
from marl_sb3.runs.run import Run
from marl_sb3.training.callback import MultiAgentCallback


class LastResult(MultiAgentCallback):
    """Keeps the result of the latest iteration, and of the latest one that was evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.result: Result | None = None
        self.evaluated: Result | None = None

    def on_iteration_end(self, result: Result) -> bool:
        """Keep it."""
        self.result = result
        if "evaluation" in result:
            self.evaluated = result
        return True


def execute(run: Run, callbacks: Sequence[BaseCallback] = ()) -> Run:
    """Train a prepared run to its end, its stop condition, or a signal; then save its policies.

    What was learned is saved also if the training fails. The env is closed.
    """
    config = run.config
    last, signals = LastResult(), StopOnSignal()
    stop = StopOnMetric(config.stop, evaluation_metrics(run))
    evaluations, checkpoints = evaluations_of(run), _checkpoint_callback(run)
    with ExitStack() as cleanup:
        cleanup.callback(run.files.unlock)
        cleanup.callback(run.algorithm.env.close)
        cleanup.enter_context(signals)
        for evaluation in evaluations:
            cleanup.callback(evaluation.close)
        try:
            histograms = RewardHistogramCallback()
            _learn(
                run, lambda end: [*evaluations, last, end, signals, histograms, *callbacks, checkpoints], stop, signals
            )
        except BaseException as error:
            checkpoints.rescue()
            try_to_save_policies(run)
            keep_traceback(run, error)
            raise
        finally:
            run.result, run.latest_evaluation = last.result, last.evaluated
        # Also if nothing was left to do: the process may have been killed after its last checkpoint.
        if run.algorithm.iteration > 0:
            run.policy_files = save_policies_of_complete(run)
    run.interrupted = signals.received is not None
    run.stopped_by = signals.received or stop.reached
    return run


def _checkpoint_callback(run: Run) -> CheckpointCallback:
    config = run.config

    def note(name: str) -> None:
        run.checkpoint = name

    return CheckpointCallback(
        run.files.checkpoints.path,
        config.checkpoints.every,
        config.checkpoints.keep,
        config.checkpoints.metric,
        config.checkpoints.mode == "max",
        at_start=config.on_nan == "rollback",
        on_saved=note,
    )


def _learn(
    run: Run,
    callbacks_with: Callable[[MultiAgentCallback], Sequence[BaseCallback]],
    stop: StopOnMetric,
    signals: StopOnSignal,
) -> None:
    """Train all phases that are left, the last one to its end or its stop condition.

    Args:
        run: as it is now.
        callbacks_with: all callbacks, with the one that ends a phase in its place.
        stop: ends the last phase: a run has gone on from where an earlier one ended, whatever ended it there.
        signals: end any phase, and the run.
    """
    for phase in phases_after(run.config, run.algorithm.num_timesteps):
        _learn_phase(run, callbacks_with(stop if phase.until is None else StopAfterSteps(phase.until)), phase)
        if signals.received or run.algorithm.num_timesteps < phase.end:
            return
        run.algorithm.keep_callback_states()


def _learn_phase(run: Run, callbacks: Sequence[BaseCallback], phase: Phase) -> None:
    """Train to the planned end, going back to the latest checkpoint where the configuration says so."""
    rollbacks = 0
    while (left := phase.n_timesteps - run.algorithm.num_timesteps) > 0:
        try:
            with logs_of(run):
                run.algorithm.learn(left, callback=list(callbacks), reset_num_timesteps=False)
            return
        except NumericError as error:
            rollbacks += 1
            if run.config.on_nan != "rollback" or rollbacks > MAX_ROLLBACKS:
                raise
            roll_back(run, rollbacks, error)
