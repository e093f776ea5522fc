"""On a signal, end the training after the running iteration."""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack
from types import FrameType

from marl_sb3.metrics import Result
from marl_sb3.signals import ENDING, HANGUP, handled
from marl_sb3.training.callback import MultiAgentCallback

_log = logging.getLogger(__name__)


class StopOnSignal(MultiAgentCallback):
    """Ends the training after the running iteration when the process receives SIGINT, SIGTERM or SIGHUP.

    Exact resume is only possible between iterations. A second SIGINT or SIGTERM interrupts at once. A second SIGHUP
    does not: when a terminal is closed, both the kernel and the shell send SIGHUP.

    As a context manager, it restores the former handlers on exit. See `marl_sb3.signals.handled` for when it does
    nothing.

    Attributes:
        received: name of the received signal; None if there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.received: str | None = None
        self._asked_to_end = False
        self._mentioned = False
        self._handlers = ExitStack()

    def __enter__(self) -> StopOnSignal:
        self._handlers.enter_context(handled(ENDING, self._on_signal))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name
        if number != HANGUP:
            if self._asked_to_end:
                raise KeyboardInterrupt
            self._asked_to_end = True

    def _on_step(self) -> bool:
        if self.received is not None and not self._mentioned:
            self._mentioned = True  # not in the handler, which may have interrupted another message
            _log.warning("%s: finishing the iteration and saving; once more stops at once", self.received)
        return True

    def on_iteration_end(self, result: Result) -> bool:
        """Return False once a signal was received."""
        return self.received is None
