"""How busy the machine is, as far as it says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil


def machine_load() -> dict[str, float | None]:
    """CPU use since the last call and use of memory, in percent; None where the system does not tell."""
    return {
        "cpu_util_percent": _reading(psutil.cpu_percent),
        "ram_util_percent": _reading(lambda: psutil.virtual_memory().percent),
    }


def _reading(read: Callable[[], Any]) -> float | None:
    try:
        return float(read())
    except Exception:  # of whatever kind: containers hide parts of /proc, and a training does not need them
        return None
