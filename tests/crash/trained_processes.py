"""Trainings as processes that can be killed: real ones; those of `forked` start faster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

FOLDER = Path(__file__).parent
_POLL_S = 0.002


class Training(Protocol):
    """A training that runs, or has ended."""

    output: Path  # the file that its output goes into

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""

    def send_signal(self, number: int) -> None:
        """Nothing happens if it has ended."""


def wait(training: Training, timeout_s: float = 120.0) -> int:
    """Its exit code.

    Raises:
        TimeoutError: it does not end; it has been killed.
    """
    deadline_s = time.monotonic() + timeout_s
    while (code := training.poll()) is None:
        if time.monotonic() > deadline_s:
            training.send_signal(signal.SIGKILL)
            raise TimeoutError(f"a training did not end; {training.output} holds what it printed")
        time.sleep(_POLL_S)
    return code


class RealTraining:
    """`python -m marl_sb3.train`; with shims, the same through `shims.py`."""

    def __init__(self, arguments: Sequence[str], shims: Mapping[str, Any], output: Path) -> None:
        self.output = output
        start = [str(FOLDER / "shims.py"), json.dumps(shims)] if shims else ["-m", "marl_sb3.train"]
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, *start, *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def poll(self) -> int | None:
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)
