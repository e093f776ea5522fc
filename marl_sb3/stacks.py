"""Print what all threads are doing when the process gets SIGUSR1, to look into a run that hangs."""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from types import FrameType

_log = logging.getLogger(__name__)

Source = Callable[[], Sequence[str]]  # returns the stacks of other processes, each with a title

_sources: list[weakref.WeakMethod[Source]] = []


def add_source(source: Source) -> None:
    """Log the stacks of other processes, too; `source` is a method, which is forgotten with its object."""
    _sources[:] = [each for each in _sources if each() is not None]
    _sources.append(weakref.WeakMethod(source))


@contextmanager
def stacks_on_signal() -> Iterator[None]:
    """Print stacks on SIGUSR1 within the context: first those of this process, then those of the sources.

    The former are printed even while the interpreter cannot run, the latter as soon as it can. Outside the main thread,
    and where standard error is no file, this does nothing.
    """
    if not hasattr(signal, "SIGUSR1"):  # Windows
        yield
        return
    former = None
    with suppress(ValueError, UnsupportedOperation, OSError):
        former = signal.signal(signal.SIGUSR1, _log_sources)
        faulthandler.register(signal.SIGUSR1, sys.__stderr__ or sys.stderr, chain=True)
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGUSR1)
        if former is not None:
            signal.signal(signal.SIGUSR1, former)


def _log_sources(number: int, frame: FrameType | None) -> None:
    for each in list(_sources):
        source = each()
        for text in source() if source is not None else ():
            _log.warning("stacks of %s", text)
