"""Report the result of an iteration: callbacks complete and receive it, the logger writes it."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat

from marl_sb3.metrics import Result
from marl_sb3.training.callback import multi_agent_callbacks
from marl_sb3.training.printed_metrics import PrintedMetrics
from marl_sb3.training.result_logger import log_result


class Reporter:
    """Passes results to callbacks and to the logger.

    Attributes:
        logger: the logger; it may be replaced.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger = logger
        self._unwritten: Result = {}  # metrics that callbacks have added since a result was written

    def report(self, result: Result, callback: BaseCallback, env_steps: int, *, write: bool) -> bool:
        """Let callbacks complete a result and receive it, and write it; returns False if one ends the training.

        Args:
            env_steps: env steps so far, the logger's step.
            write: whether the logger writes it now; otherwise metrics added by callbacks are kept for the next write.
        """
        callbacks, measured = list(multi_agent_callbacks(callback)), set(result)
        for each in callbacks:
            each.complete_result(result)
        # Every callback gets the result, even if an earlier one ends the training.
        answers = [each.on_iteration_end(result) for each in callbacks]
        if write:
            self.write(result, env_steps)
        else:
            self._unwritten.update({name: result[name] for name in result if name not in measured})
        for each in callbacks:
            each.on_iteration_logged(result)
        return all(answers)

    def write(self, result: Result, env_steps: int) -> None:
        """Let the logger write a result, with the metrics that were kept for it."""
        log_result(self.logger, {**self._unwritten, **result}, env_steps)
        self._unwritten = {}


def default_logger(verbose: int, tensorboard_log: str | None) -> Logger:
    """Make a logger that prints if `verbose`, and writes TensorBoard's events if there is a folder for them."""
    formats: list[KVWriter] = [PrintedMetrics()] if verbose else []
    if tensorboard_log is not None:
        formats.append(TensorBoardOutputFormat(tensorboard_log))
    return Logger(tensorboard_log, formats)
