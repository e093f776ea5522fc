"""Signals that ask a process to end: Ctrl-C, SIGTERM, and SIGHUP, which says that its terminal is gone."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]

HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none
ENDING = tuple(number for number in (signal.SIGINT, signal.SIGTERM, HANGUP) if number is not None)


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """While it lasts, the handler gets these signals; then the former handlers are back.

    A signal that is ignored stays ignored: that is how `nohup` and shells protect what runs in the background. Outside
    the main thread, where Python does not allow handlers, it does nothing.
    """
    former = {}
    if threading.current_thread() is threading.main_thread():
        caught = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
        former = {number: signal.signal(number, handler) for number in caught}
    try:
        yield
    finally:
        for number, before in former.items():
            signal.signal(number, before)


@contextmanager
def interrupting() -> Iterator[None]:
    """While it lasts, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does."""

    def interrupt(number: int, _: FrameType | None) -> None:
        if number == HANGUP:  # the shell repeats the kernel's: one is enough to clean up
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    with handled([number for number in ENDING if number != signal.SIGINT], interrupt):
        yield
