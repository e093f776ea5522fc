"""Wait for what happens in another process or thread."""

from __future__ import annotations

import time
from collections.abc import Callable

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
