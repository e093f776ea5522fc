"""Where the result of an iteration goes: callbacks complete it and hear of it, the logger writes it."""

from __future__ import annotations

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, Logger, TensorBoardOutputFormat

from marl_sb3.metrics import Result
from marl_sb3.training.callback import multi_agent_callbacks
from marl_sb3.training.printed_metrics import PrintedMetrics
from marl_sb3.training.result_logger import log_result


class Reporter:
    """Hands results on.

    Attributes:
        logger: the same; may be replaced.
    """

    def __init__(self, logger: Logger) -> None:
        self.logger = logger
        self._unwritten: Result = {}  # what callbacks have added to results since one was written

    def report(self, result: Result, callback: BaseCallback, env_steps: int, *, write: bool) -> bool:
        """Let callbacks complete a result, then hear of it, and write it; False if one ends the training.

        Args:
            env_steps: taken so far: the logger's step.
            write: whether the logger gets it now; otherwise what callbacks have added waits for the next one.
        """
        callbacks, measured = list(multi_agent_callbacks(callback)), set(result)
        for each in callbacks:
            each.complete_result(result)
        # Every callback hears of the iteration, even if an earlier one wants to end the training.
        answers = [each.on_iteration_end(result) for each in callbacks]
        if write:
            self.write(result, env_steps)
        else:
            self._unwritten.update({name: result[name] for name in result if name not in measured})
        for each in callbacks:
            each.on_iteration_logged(result)
        return all(answers)

    def write(self, result: Result, env_steps: int) -> None:
        """Let the logger write a result, with what has been waiting for one."""
        log_result(self.logger, {**self._unwritten, **result}, env_steps)
        self._unwritten = {}


def default_logger(verbose: int, tensorboard_log: str | None) -> Logger:
    """Prints if `verbose`, and writes TensorBoard's events if there is a folder for them."""
    formats: list[KVWriter] = [PrintedMetrics()] if verbose else []
    if tensorboard_log is not None:
        formats.append(TensorBoardOutputFormat(tensorboard_log))
    return Logger(tensorboard_log, formats)
