"""Turn an exception of an env into a message: the call, the env, the exception, and the line of code that raised it."""

from __future__ import annotations

import logging
import os
import sysconfig
import traceback
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from marl_sb3.core.state.state import State, is_plain
from marl_sb3.errors import EnvRaisedError, MarlSb3Error, described, is_disk_full

_log = logging.getLogger(__name__)

# What an env may raise. `sys.exit()` is the answer of many games to a closed window; a training must not end silently.
RAISED = (Exception, SystemExit)

_FOLDERS = (str(Path(__file__).parents[2]), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED = tuple(os.path.join(folder, "") for folder in _FOLDERS)  # this package and Python's own
_PACKAGES = {"site-packages", "dist-packages"}  # of this Python, of the user's home, or on PYTHONPATH


def raise_in_words(error: BaseException, call: str, where: str) -> None:
    """Raise an `EnvRaisedError` from an exception of an env; return if the env did not cause the exception.

    Errors of this package, a full memory and a full disk are not caused by the env.
    """
    if _is_of_the_env(error):
        way = "; without a display, xvfb-run before the command helps" if "display" in described(error).lower() else ""
        raise EnvRaisedError(f"{_words(error, call, where)}{way}") from error


def close_in_words(close: Callable[[], None], where: str) -> None:
    """Close an env; log its exception, so that other envs are closed and results are kept."""
    try:
        close()
    except RAISED as error:
        if not _is_of_the_env(error):
            raise
        _log.warning("%s", _words(error, "close()", where))


def ask_for_state(get_state: Callable[[], Any], where: str) -> State | None:
    """Return a copy of the state of an env, for a checkpoint; None if a checkpoint cannot hold it.

    An exception is logged and the checkpoint is written without this state: on resume, the env repeats its actions or
    begins a new episode.
    """
    try:
        state = get_state()
    except RAISED as error:
        if not _is_of_the_env(error):
            raise
        _log.warning("%s", _words(error, "get_state()", where))
        return None
    return deepcopy(state) if isinstance(state, dict) and is_plain(state) else None


def _is_of_the_env(error: BaseException) -> bool:
    return not isinstance(error, (MarlSb3Error, MemoryError)) and not is_disk_full(error)


def _words(error: BaseException, call: str, where: str) -> str:
    return f"{where}: {in_words(error, call)}"


def in_words(error: BaseException, call: str) -> str:
    """Return the call, the exception, and the line that raised it."""
    return f"{call} raised {described(error)} ({_place(error)})"


def _place(error: BaseException) -> str:
    """The innermost line of the user's code in the traceback; the innermost line of all if there is none."""
    lines = [(frame.f_code, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    others = (each for each in lines if not each[0].co_filename.startswith((*_INSTALLED, "<frozen ")))
    own = [each for each in others if _PACKAGES.isdisjoint(Path(each[0].co_filename).parts)]
    code, number = (own or lines)[-1]
    return f"{_short(code.co_filename)}, line {number}, in {code.co_name}"


def _short(path: str) -> str:
    """A path relative to the working directory, if it lies below it."""
    file = Path(path)
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else path
