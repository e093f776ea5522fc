"""SB3's logger, for iterations: its writers get each result as it is, beside what callbacks have recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from stable_baselines3.common.logger import DISABLED, KVWriter, Logger, filter_excluded_keys

from marl_sb3.metrics import Result, flatten


class ResultWriter(Protocol):
    """A log of iterations. SB3's `write`, which it has too, gets what a callback dumps between two iterations.

    Attributes:
        name: by which the argument `exclude` of `logger.record` knows it.
    """

    name: str

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """See SB3's `KVWriter`."""

    def write_result(self, result: Result, recorded: Mapping[str, Any], step: int) -> None:
        """Write an iteration.

        Args:
            recorded: what callbacks have recorded since the latest result or dump, by flat name.
        """

    def close(self) -> None:
        """Close the log."""


class ResultLogger(Logger):
    """SB3's logger, which can write results."""

    def __init__(self, folder: str | None, writers: Sequence[ResultWriter]) -> None:
        super().__init__(folder, cast("list[KVWriter]", list(writers)))
        self._writers = list(writers)

    def write_result(self, result: Result, step: int) -> None:
        """Write an iteration to all logs, with what has been recorded since the latest."""
        if self.level == DISABLED:
            return
        for writer in self._writers:
            kept = filter_excluded_keys(self.name_to_value, self.name_to_excluded, writer.name)
            writer.write_result(result, kept, step)
        for noted in (self.name_to_value, self.name_to_count, self.name_to_excluded):
            noted.clear()


def log_result(logger: Logger, result: Result, step: int) -> None:
    """Write an iteration to a logger; one of SB3's own, which knows flat names only, gets the result flat."""
    if isinstance(logger, ResultLogger):
        logger.write_result(result, step)
        return
    for name, value in flatten(result).items():
        logger.record(name, value)
    logger.dump(step)
