"""End the training with its iteration when the process is asked to stop."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType
from typing import Any

from marl_sb3.learners.callback import MultiAgentCallback
from marl_sb3.metrics import Result

_log = logging.getLogger(__name__)


class StopOnSignal(MultiAgentCallback):
    """Turns the first SIGINT or SIGTERM into an end after the running iteration; a second one interrupts at once.

    Only between iterations a checkpoint can be taken from which the run goes on as if nothing had happened.

    A context manager: the former handlers are back when it is left. Outside the main thread, where Python does not
    allow handlers, it does nothing.

    Attributes:
        received: the signal's name, or None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.received: str | None = None
        self._mentioned = False
        self._former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name

    def _on_step(self) -> bool:
        if self.received is not None and not self._mentioned:
            self._mentioned = True  # not in the handler, which may have interrupted another message
            _log.warning("%s: finishing the iteration and saving; once more stops at once", self.received)
        return True

    def on_iteration_end(self, result: Result) -> bool:
        """False once a signal has come."""
        return self.received is None
