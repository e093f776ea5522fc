"""The load of the machine: CPU and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil


def machine_load() -> dict[str, float | None]:
    """Return CPU use since the last call and memory use, in percent; None if the system does not report it."""
    return {
        "cpu_util_percent": _reading(psutil.cpu_percent),
        "ram_util_percent": _reading(lambda: psutil.virtual_memory().percent),
    }


def _reading(read: Callable[[], Any]) -> float | None:
    try:
        return float(read())
    except Exception:  # of any type: containers hide parts of /proc, and the training does not need these values
        return None
