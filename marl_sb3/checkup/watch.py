"""Note where a play is, so that a hang or a crash can be reported from outside the process."""

from __future__ import annotations

import faulthandler
import mmap
import time
from pathlib import Path
from typing import IO

_SIZE = 256  # bytes
_REARM_S = 0.2


class Watch:
    """Does nothing: the watch of an examination in the caller's process."""

    def at(self, call: str, episode: int | None = None, step: int | None = None) -> None:
        """Note the call that comes next."""

    def rest(self) -> None:
        """Note that the next work is not that of the env: it has no time limit."""


class ProcessWatch(Watch):
    """Writes every call to a file, and ends the process with a traceback if a call takes too long.

    Args:
        folder: of the files `position` and `stacks`.
        timeout_s: how long a call may take.
    """

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._stacks: IO[str] = (folder / "stacks").open("w", encoding="utf-8")
        with (folder / "position").open("wb+") as file:
            file.truncate(_SIZE)
            self._position = mmap.mmap(file.fileno(), _SIZE)
        self._armed = 0.0
        faulthandler.enable(self._stacks)

    def at(self, call: str, episode: int | None = None, step: int | None = None) -> None:
        """Note the call that comes next."""
        line = f"{call}|{'' if episode is None else episode}|{'' if step is None else step}"
        self._position[:] = line.encode()[:_SIZE].ljust(_SIZE)
        now = time.monotonic()
        if now > self._armed + _REARM_S:
            self._armed = now
            faulthandler.dump_traceback_later(self._timeout_s, exit=True, file=self._stacks)

    def rest(self) -> None:
        """Note that the next work is not that of the env: it has no time limit."""
        self._armed = 0.0
        faulthandler.cancel_dump_traceback_later()


def read_position(folder: Path) -> tuple[str, int | None, int | None]:
    """The latest call, its episode and its step."""
    try:
        text = (folder / "position").read_bytes().rstrip(b"\0 ").decode(errors="replace")
    except OSError:
        text = ""
    call, episode, step = (text or "the start of the process||").split("|")
    return call, int(episode) if episode else None, int(step) if step else None
