"""Handle the signals that ask a process to end: SIGINT (Ctrl-C), SIGTERM, and SIGHUP (the terminal was closed).

On Windows, SIGBREAK is in the place of SIGHUP.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from marl_sb3.systems import HANGUP, ask_this_to_end

Handler = Callable[[int, FrameType | None], None]

ENDING = tuple(number for number in (signal.SIGINT, signal.SIGTERM, HANGUP) if number is not None)

ENDS_WITH_INPUT = (
    "MARL_SB3_ENDS_WITH_INPUT"  # environment variable of a process that is to end with the one that started it
)


def end_with_parent() -> None:
    """Send this process SIGTERM when its standard input ends, if the process that started it has asked for that.

    The input is a pipe that only the starting process can write to: it ends with that process, however it ended. What
    this process starts or reads has an empty input instead.
    """
    if os.environ.pop(ENDS_WITH_INPUT, None) is None:
        return
    pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        os.read(pipe, 1)
        ask_this_to_end()

    threading.Thread(target=wait, name="end with parent", daemon=True).start()


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """Install a handler for these signals within the context; restore the former handlers on exit.

    An ignored signal stays ignored: `nohup` and shells protect background processes that way. Outside the main thread,
    where Python does not allow handlers, this does nothing.
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


def pass_on(received: str | None) -> None:
    """Send this process a signal that was kept until all was saved, by its name; None: none was.

    It does what it does without us: Ctrl-C raises KeyboardInterrupt and SIGTERM ends the process, or a handler of the
    caller's is called. It must be that one's again.
    """
    if received is not None:
        sys.stdout.flush()
        signal.raise_signal(signal.Signals[received])


@contextmanager
def interrupting() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt within the context, as Ctrl-C does."""

    def interrupt(number: int, _: FrameType | None) -> None:
        if number == HANGUP:  # kernel and shell may both send it; the second must not stop the clean-up
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    with handled([number for number in ENDING if number != signal.SIGINT], interrupt):
        yield
