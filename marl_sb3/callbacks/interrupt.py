"""End the training at the next step when the process is asked to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from marl_sb3.learners.callback import MultiAgentCallback
from marl_sb3.metrics import Result


class StopOnSignal(MultiAgentCallback):
    """Turns the first SIGINT or SIGTERM into a clean end of training; a second one interrupts at once.

    A context manager: the former handlers are back when it is left. Outside the main thread, where Python does not
    allow handlers, it does nothing.

    Attributes:
        received: the signal's name, or None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.received: str | None = None
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
        return self.received is None

    def on_iteration_end(self, result: Result) -> bool:
        """False once a signal has come."""
        return self.received is None
