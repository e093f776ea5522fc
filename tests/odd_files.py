"""Put links, pipes and sockets where files or folders should be, and see that nothing hangs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

MAX_S = 20.0


class HangsError(BaseException):
    """No `Exception`, which cleaning up may ignore."""


@contextmanager
def in_time() -> Iterator[None]:
    """Ends what hangs, so that the test fails."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise HangsError(f"it took more than {MAX_S:g} s")

    former = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, MAX_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def a_pipe(path: Path, _: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path, _: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


PUT: dict[str, Callable[[Path, Path], None]] = {
    "a link to a file": lambda path, outside: path.symlink_to(outside / "file"),
    "a link to a folder": lambda path, outside: path.symlink_to(outside / "folder"),
    "a link to what is not there": lambda path, outside: path.symlink_to(outside / "new"),
    "a link to a device": lambda path, outside: path.symlink_to("/dev/null"),
    "a pipe": a_pipe,
    "a socket": a_socket,
}


def put(kind: str, path: Path, outside: Path) -> None:
    """Put something odd in a place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    PUT[kind](path, outside)
