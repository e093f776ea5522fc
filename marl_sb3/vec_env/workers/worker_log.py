"""Log records and warnings of a worker: they are collected there, and logged by the main process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any, TextIO

_REGISTRY: Any = {}  # of the warnings that were shown: several workers give the same ones


class MessageLog(logging.Handler):
    """Collects the log records and warnings of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[tuple[Any, ...]] = []

    def install(self) -> None:
        """Collect everything from now on; the main process decides what is shown."""
        logging.getLogger().handlers = [self]
        warnings.simplefilter("default")
        warnings.showwarning = self._show_warning

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a log record, with its traceback."""
        self._messages.append(("log", record.name, record.levelno, self.format(record)))

    def _show_warning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        self._messages.append(("warning", str(message), category, filename, lineno))

    def taken(self) -> Sequence[tuple[Any, ...]]:
        """Return the messages since the last call."""
        messages, self._messages = self._messages, []
        return messages


def log_levels() -> dict[str, int]:
    """Return the loggers of this process for which a level was set, and the levels; the name of the root is empty."""
    loggers: dict[str, Any] = {"": logging.getLogger(), **logging.getLogger().manager.loggerDict}
    return {
        name: logger.level for name, logger in loggers.items() if isinstance(logger, logging.Logger) and logger.level
    }


def pass_on(messages: Sequence[tuple[Any, ...]]) -> None:
    """Log messages of a worker in this process; a warning that several workers give is shown once."""
    for kind, *parts in messages:
        if kind == "log":
            name, level, text = parts
            logging.getLogger(name).log(level, "%s", text)
        else:
            text, category, filename, lineno = parts
            warnings.warn_explicit(text, category, filename, lineno, registry=_REGISTRY)
