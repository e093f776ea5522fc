"""Handle the signals that ask a process to end: SIGINT (Ctrl-C), SIGTERM, and SIGHUP (the terminal was closed).

On Windows, SIGBREAK is in the place of SIGHUP.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from marl_sb3.systems import HANGUP, ask_this_to_end, end_this_at_once

Handler = Callable[[int, FrameType | None], None]

ENDING = tuple(number for number in (signal.SIGINT, signal.SIGTERM, HANGUP) if number is not None)

_CALLED_BY_LLVM = ("_raw_object_cache_notify", "_raw_object_cache_getbuffer")  # functions of llvmlite
_SOON_S = 0.05  # after which a signal is handled again that came at a wrong moment
_GRACE_S = 8.0  # in which a training may finish its iteration when the process that has started it is gone
ENDS_WITH_INPUT = (
    "MARL_SB3_ENDS_WITH_INPUT"  # environment variable of a process that is to end with the one that started it
)


def end_with_parent() -> None:
    """End this process when its standard input ends, if the process that started it has asked for that.

    The input is a pipe that only the starting process can write to: it ends with that process, however it ended. This
    one gets SIGTERM then, as if it were interrupted, and is killed if that does not end it soon. What it starts or
    reads has an empty input instead.
    """
    if os.environ.pop(ENDS_WITH_INPUT, None) is None:
        return
    pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        os.read(pipe, 1)
        ask_this_to_end()
        time.sleep(_GRACE_S)
        end_this_at_once()

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


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise KeyboardInterrupt, but not where C code calls Python that must not raise.

    It would end the process while PyTorch is imported, and numba's compiler would go on without what it has asked for.
    """
    while frame is not None:
        name, package = frame.f_code.co_name, frame.f_globals.get("__package__")
        if (name, package) == ("<module>", "torch") or name in _CALLED_BY_LLVM:
            return _interrupt_soon()
        frame = frame.f_back
    if number == HANGUP:  # kernel and shell may both send it; the second must not stop the clean-up
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _interrupt_soon() -> None:
    later = threading.Timer(_SOON_S, ask_this_to_end)
    later.daemon = True
    later.start()


@contextmanager
def none_lost() -> Iterator[None]:
    """Interrupt again within the context if a KeyboardInterrupt was lost in a function that C code has called."""
    former = sys.unraisablehook

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            _interrupt_soon()
        else:
            former(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = former


@contextmanager
def interrupting() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt within the context, as Ctrl-C does."""
    with handled([number for number in ENDING if number != signal.SIGINT], interrupt):
        yield
