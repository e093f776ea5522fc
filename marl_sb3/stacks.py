"""Look into a process that hangs: what all threads are doing, on SIGUSR1; what keeps it from ending, at its end."""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from types import FrameType
from typing import Any

from marl_sb3.systems import STACKS

_log = logging.getLogger(__name__)

_END_S = 0.5  # how long threads and processes that an env has told to end may take

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
    if STACKS is None:
        yield
        return
    former = None
    with suppress(ValueError, UnsupportedOperation, OSError):
        former = signal.signal(STACKS, _log_sources)
        faulthandler.register(STACKS, sys.__stderr__ or sys.stderr, chain=True)
    try:
        yield
    finally:
        faulthandler.unregister(STACKS)
        if former is not None:
            signal.signal(STACKS, former)


def _log_sources(number: int, frame: FrameType | None) -> None:
    for each in list(_sources):
        source = each()
        for text in source() if source is not None else ():
            _log.warning("stacks of %s", text)


@contextmanager
def unending_named() -> Iterator[None]:
    """At the end of the context, name the threads and processes of which Python will wait for the end.

    They were started within the context, by an env say, are no daemons, and still run.
    """
    before = awaited()
    try:
        yield
    finally:
        names = left_running(before)
        if names:
            _log.warning("still running, and awaited before this process ends: %s", ", ".join(names))
            _log.warning("an env that starts threads or processes has to end them in close(), or start them as daemons")


def left_running(before: Collection[Any]) -> list[str]:
    """Name what `awaited` returns now and has not returned before, if it does not end within a moment."""
    started, until = [each for each in awaited() if each not in before], time.monotonic() + _END_S
    for each in started:
        each.join(max(0.0, until - time.monotonic()))
    return [_name(each) for each in started if each.is_alive()]


def awaited() -> list[Any]:
    """Return the threads and processes of which Python waits for the end; pools end by themselves."""
    pools: Any = sys.modules.get("concurrent.futures.thread")
    spared = {threading.main_thread(), threading.current_thread(), *(pools._threads_queues if pools else ())}
    children: Any = sys.modules.get("multiprocessing.process")
    found = [*threading.enumerate(), *(children.active_children() if children else ())]
    return [each for each in found if not each.daemon and each not in spared]


def _name(running: Any) -> str:
    if isinstance(running, threading.Thread):
        return f"thread {running.name!r}"
    return f"process {running.name!r} ({running.pid})"
