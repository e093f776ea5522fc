"""Exceptions that an env raises, in words: which call, in which env, and in which line of whose file."""

from __future__ import annotations

import logging
import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marl_sb3.errors import EnvRaisedError, MarlSb3Error, is_disk_full
from marl_sb3.storage.state import State, is_plain

_log = logging.getLogger(__name__)

_INSTALLED = tuple(
    os.path.join(folder, "")
    for folder in (
        str(Path(__file__).parents[1]),  # of this package
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)


def raise_in_words(error: Exception, call: str, where: str) -> None:
    """Raise an `EnvRaisedError` from what an env has raised; return if that is not the env's fault.

    Not its fault are errors of this package, which say all of it themselves, and a full memory or disk.

    Args:
        error: what was raised.
        call: what was called, such as `step()`.
        where: env, episode and step.

    Raises:
        EnvRaisedError: see there.
    """
    if _is_of_the_env(error):
        raise EnvRaisedError(_words(error, call, where)) from error


def close_in_words(close: Callable[[], None], where: str) -> None:
    """Close an env; that it cannot be closed is logged: it keeps no other from being closed, and no result back."""
    try:
        close()
    except Exception as error:
        if not _is_of_the_env(error):
            raise
        _log.warning("%s", _words(error, "close()", where))


def ask_for_state(get_state: Callable[[], Any], where: str) -> State | None:
    """What an env says of itself for a checkpoint; None where it is nothing that a checkpoint can hold.

    An exception is logged: it keeps no checkpoint from being written, as envs can be brought back by other means, or
    begin a new episode.
    """
    try:
        state = get_state()
    except Exception as error:
        if not _is_of_the_env(error):
            raise
        _log.warning("%s", _words(error, "get_state()", where))
        return None
    return state if isinstance(state, dict) and is_plain(state) else None


def _is_of_the_env(error: Exception) -> bool:
    return not isinstance(error, (MarlSb3Error, MemoryError)) and not is_disk_full(error)


def _words(error: Exception, call: str, where: str) -> str:
    return f"{where}: {call} raised {type(error).__name__}: {error} ({_place(error)})"


def _place(error: Exception) -> str:
    """The innermost line of the user's own code; of any code if none of it is the user's."""
    lines = [(frame.f_code, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    own = [(code, number) for code, number in lines if not code.co_filename.startswith((*_INSTALLED, "<frozen "))]
    code, number = (own or lines)[-1]
    return f"{_short(code.co_filename)}, line {number}, in {code.co_name}"


def _short(path: str) -> str:
    """Relative where it lies below the working directory."""
    file = Path(path)
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else path
