"""Every exception that marl_sb3 raises on purpose.

The commands turn each of them into one or two lines; `ConfigError`, `EnvError` and `CheckpointError` end
with exit code 2, others and `EnvRaisedError` with 1.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class MarlSb3Error(Exception):
    """Base of all errors of this package."""


class ConfigError(MarlSb3Error, ValueError):
    """A setting is wrong: the message says which, the value received, and what is accepted.

    Args:
        message: what is wrong, for a person.
        key: the setting's name where there is one (`learning_rate`, `env.height`), so that a
            caller who knows where the value came from can say so.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class EnvError(MarlSb3Error, RuntimeError):
    """An env broke the PettingZoo `ParallelEnv` contract while it ran.

    The message names the env's index, the episode, the step and, where it applies, the agent.
    """


class EnvRaisedError(EnvError):
    """An env raised an exception of its own, which is the cause of this one.

    The message names the call, the env's index, the episode, the step, the episode's seed, and the line of the env.
    """


class VecEnvOrderError(MarlSb3Error, RuntimeError):
    """The methods of a vec env were called in a wrong order, such as `recv()` without `send()`."""


class NumericError(MarlSb3Error, ArithmeticError):
    """A loss, a gradient or what they are made of is NaN or infinite; the message names it and where it began."""


class EnvNumericError(EnvError, NumericError):
    """An env returned an observation or a reward that is NaN or infinite."""


class CheckpointError(MarlSb3Error, RuntimeError):
    """A checkpoint is damaged, does not belong to this run, or is not a checkpoint; nothing of it has been used.

    The message names the file, what is wrong with it, and what is accepted.
    """


class ExportError(MarlSb3Error, RuntimeError):
    """A policy could not be exported, or what was exported does not act as it does; no file has been left of it."""


_WRONG_PATH = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
)


@contextmanager
def path_is_usable(what: str, path: str | Path, key: str) -> Iterator[None]:
    """Turn errors that a user's path causes into `ConfigError`; those of a full or failing disk stay as they are.

    Args:
        what: what cannot be done, such as `--run-dir: cannot write to`.
        path: the path that the user named.
        key: the setting or option.

    Raises:
        ConfigError: the path is not permitted, is read-only, has a file where a folder should be, or is too long.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _WRONG_PATH:
            raise
        inner = error.filename if isinstance(error.filename, str) and error.filename != str(path) else None
        where = "" if inner is None else f" ({inner})"
        raise ConfigError(f"{what} {path}: {error.strerror}{where}", key=key) from error


def as_path(name: str, value: Any) -> Path:
    """A path that a user gives to a function.

    Args:
        name: of the argument, for the message.
        value: anything.

    Raises:
        ConfigError: it is neither a string nor a `pathlib.Path`.
    """
    if not isinstance(value, (str, Path)):
        raise ConfigError(f"{name} is {value!r:.200}; accepted: a path, as a string or a pathlib.Path", key=name)
    return Path(value)


def is_disk_full(error: BaseException) -> bool:
    """Whether it says that there is no space left: that is nobody's mistake but the machine's."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def note_traceback_file(error: BaseException, file: str) -> None:
    """Let an exception know the file in which its traceback is kept, for messages to point to."""
    error.__dict__["traceback_file"] = file


def traceback_file(error: BaseException) -> str | None:
    """The file in which the traceback of an exception is kept, if it is kept in one."""
    return error.__dict__.get("traceback_file")


def note_remedy(error: BaseException, remedy: str) -> None:
    """Keep what a user can do about an exception; the commands show it with the message."""
    error.__dict__["remedy"] = remedy


def remedy_of(error: BaseException) -> str | None:
    """What a user can do about an exception, where that is known."""
    return error.__dict__.get("remedy")
