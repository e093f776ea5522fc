"""Raise the exceptions of shards in the process of the learners."""

from __future__ import annotations

from typing import TypeVar

from marl_sb3 import errors
from marl_sb3.errors import ConfigError, MarlSb3Error
from marl_sb3.runners.shards.plan import ShardFault

R = TypeVar("R")


class ShardError(RuntimeError):
    """The exception in a shard, with its traceback there; the cause of the exception here."""


def raise_fault(fault: ShardFault) -> None:
    """Raise an exception like the one in the shard.

    Raises:
        MarlSb3Error: of the same class, if it was one of this package.
        AttributeError: an env does not have what was called.
        RuntimeError: any other exception.
    """
    cause = ShardError(f"in the process of the shard:\n{fault.traceback}")
    if fault.kind == "ConfigError":
        raise ConfigError(fault.message, key=fault.key) from cause
    if fault.kind == "AttributeError":
        raise AttributeError(fault.message) from cause
    kind = getattr(errors, fault.kind, None)
    if isinstance(kind, type) and issubclass(kind, MarlSb3Error):
        raise kind(fault.message) from cause
    raise RuntimeError(fault.message) from cause


def result_or_raise(result: R | ShardFault) -> R:
    """Return a result; raise if it is a fault."""
    if isinstance(result, ShardFault):
        raise_fault(result)
        raise AssertionError("raise_fault() raises")
    return result
