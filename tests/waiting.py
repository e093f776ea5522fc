"""Wait for what happens in another process or thread."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil


def wait_for(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Look again and again; it fails when so many seconds have gone by."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"it did not happen within {timeout_s:g} s"
        time.sleep(0.01)


def is_running(process: int) -> bool:
    """Whether there is a process with this number that has not ended."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def writing_to(folder: Path) -> dict[str, int]:
    """The processes whose standard output is a file of a folder: name of the file -> process."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            output = (entry / "fd" / "1").readlink() if entry.name.isdecimal() else None
            if output is not None and output.parent == folder.resolve():
                found[output.name] = int(entry.name)
    return found


def read_all(descriptor: int) -> str:
    chunks = []
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(descriptor)
    text = b"".join(chunks).decode("utf-8", "replace")
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
