"""Run a command: its log, its error messages, its exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from marl_sb3.errors import CheckpointError, ConfigError, EnvError, EnvRaisedError, MarlSb3Error, described, noted
from marl_sb3.output import LenientStream, print_text, printable
from marl_sb3.signals import interrupt, interrupting, none_lost
from marl_sb3.stacks import stacks_on_signal, unending_named
from marl_sb3.startup import handle_interrupts, ignore_interrupts

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def run_command(command: Callable[[], int], verbosity: int) -> int:
    """Run a command; an exception becomes a message and an exit code, and with `-v` also a traceback.

    If the reader of standard output has gone (`| head`), the command continues with the same exit code. If
    output cannot be written for another reason, such as a full disk, the exit code is 1.
    """
    try:
        handle_interrupts(interrupt)
        with _lenient_output() as output, none_lost(), interrupting(), stacks_on_signal(), unending_named():
            exit_code = _exit_code(command, verbosity)
            output.flush()
            if output.is_lost:
                print_text(f"error: standard output could not be written: {output.error}", stderr=True)
                exit_code = exit_code or EXIT_FAILED
    except KeyboardInterrupt:  # again, before this process was deaf to it
        return _interrupted()
    return exit_code


@contextmanager
def _lenient_output() -> Iterator[LenientStream]:
    """Keep standard output and error from raising within the context; yields standard output."""
    former = sys.stdout, sys.stderr
    streams = [LenientStream(former[0]), StandardError(former[1])]
    sys.stdout, sys.stderr = (cast("TextIO", stream) for stream in streams)
    try:
        yield streams[0]
    finally:
        sys.stdout, sys.stderr = former
        for stream in streams:
            stream.flush()
            stream.discard()


class StandardError(LenientStream):
    """Standard error; on a terminal, long lines end between words."""

    def write(self, text: str) -> int:
        """Write text; a live view, which moves the cursor, writes as it is."""
        if self.isatty() and not {"\x1b", "\r"}.intersection(text):
            from marl_sb3.extensions.display.text import folded

            with suppress(OSError, ValueError, AttributeError):  # it has no size
                text = folded(text, int(os.environ.get("COLUMNS") or os.get_terminal_size(self.fileno()).columns))
        return super().write(text)


def _exit_code(command: Callable[[], int], verbosity: int) -> int:
    try:
        return command()
    except KeyboardInterrupt:
        return _interrupted()
    except MarlSb3Error as error:
        is_users = isinstance(error, (ConfigError, EnvError, CheckpointError)) and not isinstance(error, EnvRaisedError)
        return _failed(error, str(error), EXIT_USAGE if is_users else EXIT_FAILED, verbosity)
    except Exception as error:
        hint = "" if verbosity or noted(error, "traceback_file") else " (-v shows where)"
        return _failed(error, f"{described(error)}{hint}", EXIT_FAILED, verbosity)


def _interrupted() -> int:
    ignore_interrupts()
    print_text("interrupted", stderr=True)
    return EXIT_INTERRUPTED


def _failed(error: Exception, message: str, exit_code: int, verbosity: int) -> int:
    if verbosity:
        import traceback

        print_text("".join(traceback.format_exception(error)), stderr=True, end="")
    file, remedy = noted(error, "traceback_file"), noted(error, "remedy")
    more = f"{f'; traceback: {file}' if file else ''}{f'; {remedy}' if remedy else ''}"
    print_text(f"error: {message}{more}", stderr=True)
    return exit_code


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`: a live view replaces it, so that lines go above the view.

    What a terminal would obey is escaped; see `printable`.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    def format(self, record: logging.LogRecord) -> str:
        is_ordinary = hasattr(record, "ordinary") and record.levelno == logging.WARNING
        return printable(record.getMessage() if is_ordinary else super().format(record))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def setup_logging(verbosity: int) -> None:
    """Show the log of the package: warnings; with -v also infos, with -vv everything."""
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(levelname)-8s %(message)s"))
    logger = logging.getLogger("marl_sb3")
    logger.handlers = [handler]
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)])
