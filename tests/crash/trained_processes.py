"""Trainings as processes that can be killed: real ones, and forked ones, which start faster."""

from __future__ import annotations

import json
import multiprocessing
import os
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
    """A training that runs, or has ended.

    Attributes:
        output: the file that its output goes into.
    """

    output: Path

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


class ForkedTraining:
    """A child of a fork server."""

    def __init__(self, server: ForkServer, output: Path) -> None:
        self._server, self._code = server, None
        self.output = output

    def poll(self) -> int | None:
        if self._code is None and self._server.connection.poll():
            self._code = self._server.connection.recv()
        return self._code

    def send_signal(self, number: int) -> None:
        if self._code is None:
            self._server.connection.send(("signal", number))


class ForkServer:
    """Starts trainings, one after the other; a context manager."""

    def __init__(self) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self._last: ForkedTraining | None = None
        # Kernels are compiled for the processes that are here already; their number of threads is their own business.
        command = [sys.executable, "-W", "ignore", str(FOLDER / "fork_server.py"), str(theirs.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def __enter__(self) -> ForkServer:
        assert self.connection.recv() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()  # which ends it, and its child
        self._process.wait()

    def start(self, arguments: Sequence[str], shims: Mapping[str, Any], output: Path) -> ForkedTraining:
        """Start a training; the one before it is waited for."""
        if self._last is not None:
            wait(self._last)
        self.connection.send(("start", list(arguments), dict(shims), os.fspath(output)))
        self._last = ForkedTraining(self, output)
        return self._last
