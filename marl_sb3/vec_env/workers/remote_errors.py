"""Exceptions on their way from a worker to the main process."""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from marl_sb3.errors import EnvRaisedError


class WorkerTracebackError(Exception):
    """The cause of an exception that comes from a worker: its traceback there, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def packed_error(error: Exception) -> bytes:
    """Return an exception as bytes, with its traceback as text; one that cannot be pickled becomes its description."""
    text = "".join(traceback.format_exception(error))
    plain = error.with_traceback(None)
    plain.__cause__ = plain.__context__ = None
    try:
        packed = pickle.dumps((plain, text))
        pickle.loads(packed)  # an exception with a constructor of its own may fail only here
    except Exception:
        packed = pickle.dumps((EnvRaisedError(f"{type(error).__name__}: {error}"), text))
    return packed


def unpacked_error(packed: bytes) -> Exception:
    """Return the exception from `packed_error`, with the traceback as its cause."""
    error: Any
    error, text = pickle.loads(packed)
    error.__cause__ = WorkerTracebackError(text)
    return error  # type: ignore[no-any-return]
