"""What workers write to standard output and standard error: the main process writes it to its own."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from typing import IO

_END_S = 1.0  # how long the rest is waited for: a process that an env has started may keep the pipe open


class OutputThread(threading.Thread):
    """Passes on the lines that come through a pipe.

    A live view replaces the streams of the main process, and then shows the lines above itself. Lines of workers do not
    mix, and what a worker has written is shown even if it dies.

    Args:
        pipe: from the workers, in bytes; the thread closes it at its end.
        stream: `stdout` or `stderr`.
    """

    def __init__(self, pipe: IO[bytes], stream: str) -> None:
        super().__init__(name=f"workers-{stream}", daemon=True)
        self._pipe, self._stream = pipe, stream
        self.start()

    def run(self) -> None:
        """Pass lines on until no process can write to the pipe."""
        with self._pipe:
            for line in self._pipe:
                with suppress(OSError, ValueError):  # nobody reads the stream of this process, or it is closed
                    getattr(sys, self._stream).write(line.decode("utf-8", "replace"))

    def end(self) -> None:
        """Wait for the rest, after the workers have ended."""
        self.join(_END_S)
