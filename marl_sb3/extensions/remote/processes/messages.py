"""How requests, results, exceptions, log records and output travel between the main process and its workers.

Functions and classes that the other process cannot import travel by value, with cloudpickle.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from marl_sb3 import errors
from marl_sb3.core.envs.registry import import_modules, imported_modules
from marl_sb3.errors import ConfigError, EnvError, EnvRaisedError, MarlSb3Error, described

# --- Requests and results --------------------------------------------------------------------------------------------


def by_value(value: Any) -> bytes:
    """Pickle a value; classes of a script, which has another name in a worker, go by value."""
    import cloudpickle  # only workers need it

    return cloudpickle.dumps(value)  # type: ignore[no-any-return]


def packed_request(name: str, arguments: Sequence[Any]) -> bytes:
    """Return a call of a worker's method as bytes.

    Raises:
        ConfigError: an argument cannot be pickled.
    """
    try:
        return by_value((name, arguments))
    except Exception as error:
        raise ConfigError(
            f"{name}(): an argument cannot be sent to a worker: {type(error).__name__}: {error}; with n_workers=0 it "
            "need not be",
        ) from error


def packed_result(value: Any, name: str) -> bytes:
    """Return what a worker answers as bytes.

    Args:
        value: anything.
        name: what it is, for the message.

    Raises:
        EnvError: it cannot be pickled.
    """
    try:
        return pickle.dumps(value)  # faster, and mostly possible
    except Exception:
        try:
            return by_value(value)
        except Exception as error:
            raise EnvError(
                f"{name}: what the envs return cannot be sent from a worker: {type(error).__name__}: {error}; "
                "n_workers=0 steps them in this process"
            ) from error


# --- Exceptions ------------------------------------------------------------------------------------------------------


class WorkerTracebackError(Exception):
    """The cause of an exception that comes from another process: its traceback there, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Failed:
    """Takes the place of a result if a call has raised an exception. In another process, the traceback is its cause.

    An exception that cannot be pickled becomes its description there: an `Exception` is then an `EnvRaisedError`,
    another exception the built-in one that its class derives from.
    """

    error: BaseException  # the exception

    def __reduce__(self) -> tuple[Any, ...]:
        error, text = self.error, "".join(traceback.format_exception(self.error))
        plain = error.with_traceback(None)
        plain.__cause__ = plain.__context__ = None
        try:
            packed = pickle.dumps(plain)
            pickle.loads(packed)  # an exception with a constructor of its own may fail only here
        except Exception:
            builtin = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
            kind = EnvRaisedError if isinstance(error, Exception) else builtin
            packed = pickle.dumps(kind(described(error)))
        return _failed, (packed, text)


def _failed(packed: bytes, text: str) -> Failed:
    error = pickle.loads(packed)
    error.__cause__ = WorkerTracebackError(text)
    return Failed(error)


def known_error(error: Exception, where: str = "") -> Exception:
    """Return an exception like this one, of a class that every process knows.

    Args:
        error: any exception; a class of this package and `AttributeError` stay, any other becomes a `RuntimeError`.
        where: put before its message.
    """
    words = str(error) if isinstance(error, MarlSb3Error) else described(error)
    if isinstance(error, ConfigError):
        return ConfigError(where + words, key=error.key)
    if isinstance(error, AttributeError):
        return AttributeError(where + words)
    kind = type(error) if getattr(errors, type(error).__name__, None) is type(error) else RuntimeError
    return kind(where + words)


def not_the_first(error: Exception, accepted: str, key: str) -> ConfigError:
    """Return the error for an env that could not be made in a process that has made others: it may make only one."""
    words = f"{error}; this process has made other envs before; accepted, if it can make only one: {accepted}"
    return ConfigError(words, key=key)


# --- Log records, warnings and output --------------------------------------------------------------------------------

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
        self._shown_before = warnings.showwarning
        warnings.showwarning = self._show_warning  # type: ignore[assignment]

    def remove(self) -> None:
        """Collect nothing more: what is logged and warned of is written to standard error."""
        logging.getLogger().handlers = []
        warnings.showwarning = self._shown_before

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a log record, with its traceback."""
        self._messages.append(("log", record.name, record.levelno, self.format(record)))

    def _show_warning(self, message: Any, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
        self._messages.append(("warning", str(message), category, filename, lineno))

    def taken(self) -> Sequence[tuple[Any, ...]]:
        """Return the messages since the last call."""
        messages, self._messages = self._messages, []
        return messages


def pass_on(messages: Sequence[tuple[Any, ...]]) -> None:
    """Log messages of a worker in this process; a warning that several workers give is shown once."""
    for kind, *parts in messages:
        if kind == "log":
            name, level, text = parts
            logging.getLogger(name).log(level, "%s", text)
        else:
            text, category, filename, lineno = parts
            warnings.warn_explicit(text, category, filename, lineno, registry=_REGISTRY)


def output_thread(pipe: IO[bytes], stream: str) -> threading.Thread:
    """Start a thread that passes on what workers write to standard output or standard error, line by line.

    A live view replaces the streams of the main process, and then shows the lines above itself. Lines of workers do not
    mix, and what a worker has written is shown even if it dies.

    Args:
        pipe: from the workers, in bytes; the thread closes it when no process can write to it any more.
        stream: `stdout` or `stderr`.
    """

    def pass_lines_on() -> None:
        with pipe:
            for line in pipe:
                with suppress(OSError, ValueError):  # nobody reads the stream of this process, or it is closed
                    getattr(sys, stream).write(line.decode("utf-8", "replace"))

    thread = threading.Thread(target=pass_lines_on, name=f"workers-{stream}", daemon=True)
    thread.start()
    return thread


# --- Surroundings ----------------------------------------------------------------------------------------------------

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class ProcessContext:
    """What code in the main process finds around it, and has to find in a worker, too."""

    folder: str  # the working folder
    search_path: Sequence[str]  # of modules
    environment: Mapping[str, str]  # all variables
    log_levels: Mapping[str, int]  # logger -> level; the name of the root is empty
    imports: Sequence[str] = ()  # modules that register envs and networks, as after `--import`

    @classmethod
    def here(cls, *, imports: bool = False) -> ProcessContext:
        """Return that of this process.

        The workers share the cores: libraries start one thread in a worker, if the user has not set another number.

        Args:
            imports: whether the worker needs what `--import` has registered.
        """
        environment = {**dict.fromkeys(_THREADS, "1"), **os.environ}
        loggers: dict[str, Any] = {"": logging.getLogger(), **logging.getLogger().manager.loggerDict}
        levels = {name: each.level for name, each in loggers.items() if isinstance(each, logging.Logger) and each.level}
        return cls(os.getcwd(), list(sys.path), environment, levels, tuple(imported_modules()) if imports else ())

    def enter(self) -> None:
        """Give it to this process."""
        os.chdir(self.folder)
        sys.path[:] = self.search_path
        for name in set(os.environ) - set(self.environment):
            del os.environ[name]
        os.environ.update(self.environment)
        for name, level in self.log_levels.items():
            logging.getLogger(name).setLevel(level)
        import_modules(self.imports)
