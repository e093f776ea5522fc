"""Requests, answers and exceptions as bytes, on their way between the main process and a worker.

Functions and classes that the other process cannot import travel by value, with cloudpickle.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from typing import Any

from marl_sb3.envs.registry import EnvFactory
from marl_sb3.errors import ConfigError, EnvError, EnvRaisedError, described
from marl_sb3.vec_env.workers.plan import SharePlan


class WorkerTracebackError(Exception):
    """The cause of an exception that comes from a worker: its traceback there, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def by_value(value: Any) -> bytes:
    """Pickle a value; classes of a script, which has another name in a worker, go by value."""
    import cloudpickle  # only workers need it

    return cloudpickle.dumps(value)  # type: ignore[no-any-return]


def packed_plan(plan: SharePlan) -> bytes:
    """Return a plan as bytes.

    Raises:
        ConfigError: the factory or an argument of the env cannot be pickled.
    """
    try:
        return by_value(plan)
    except Exception as error:
        raise ConfigError(
            f"n_workers: the env factory {_name(plan.factory)} or an argument of the env cannot be sent to a worker: "
            f"{type(error).__name__}: {error}; accepted: functions and classes that hold no open files, "
            "locks or connections; n_workers=0 makes the envs in this process",
            key="n_workers",
        ) from error


def _name(factory: EnvFactory) -> str:
    return getattr(factory, "__qualname__", None) or repr(factory)


def packed_request(name: str, arguments: Sequence[Any]) -> bytes:
    """Return a request as bytes; see `ShareServer`.

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


def packed_answer(value: Any, name: str) -> bytes:
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


def packed_error(error: BaseException) -> bytes:
    """Return an exception as bytes, with its traceback as text; one that cannot be pickled becomes its description.

    An `Exception` is then an `EnvRaisedError`, another exception the built-in one that its class derives from.
    """
    text = "".join(traceback.format_exception(error))
    plain = error.with_traceback(None)
    plain.__cause__ = plain.__context__ = None
    try:
        packed = pickle.dumps((plain, text))
        pickle.loads(packed)  # an exception with a constructor of its own may fail only here
    except Exception:
        builtin = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
        kind = EnvRaisedError if isinstance(error, Exception) else builtin
        packed = pickle.dumps((kind(described(error)), text))
    return packed


def unpacked_error(packed: bytes) -> BaseException:
    """Return the exception from `packed_error`, with the traceback as its cause."""
    error: Any
    error, text = pickle.loads(packed)
    error.__cause__ = WorkerTracebackError(text)
    return error  # type: ignore[no-any-return]
