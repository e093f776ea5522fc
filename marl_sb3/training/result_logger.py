"""SB3's logger extended to results: its writers get each nested result, and the values recorded by callbacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from stable_baselines3.common.logger import DISABLED, KVWriter, Logger, filter_excluded_keys

from marl_sb3.metrics import Result, flatten


class ResultWriter(Protocol):
    """A log of iterations. Its `write`, as in SB3, gets values that a callback dumps between two iterations.

    Attributes:
        name: name of the log for the argument `exclude` of `logger.record`.
    """

    name: str

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """See SB3's `KVWriter`."""

    def write_result(self, result: Result, recorded: Mapping[str, Any], step: int) -> None:
        """Write an iteration.

        Args:
            recorded: flat name -> value, recorded by callbacks since the latest result or dump.
        """

    def close(self) -> None:
        """Close the log."""


class ResultLogger(Logger):
    """SB3's logger with a method to write results."""

    def __init__(self, folder: str | None, writers: Sequence[ResultWriter]) -> None:
        super().__init__(folder, cast("list[KVWriter]", list(writers)))
        self._writers = list(writers)

    def write_result(self, result: Result, step: int) -> None:
        """Write an iteration to all logs, with the values recorded since the last one."""
        if self.level == DISABLED:
            return
        for writer in self._writers:
            kept = filter_excluded_keys(self.name_to_value, self.name_to_excluded, writer.name)
            writer.write_result(result, kept, step)
        for noted in (self.name_to_value, self.name_to_count, self.name_to_excluded):
            noted.clear()


def log_result(logger: Logger, result: Result, step: int) -> None:
    """Write an iteration to a logger; SB3's own loggers get flat names."""
    if isinstance(logger, ResultLogger):
        logger.write_result(result, step)
        return
    for name, value in flatten(result).items():
        logger.record(name, value)
    logger.dump(step)
