"""SB3's table of metrics on standard output; a failure to print does not end the training."""

from __future__ import annotations

import sys
from typing import Any

from stable_baselines3.common.logger import HumanOutputFormat, KVWriter

from marl_sb3.display.screen import Guard
from marl_sb3.output import LenientStream

_MAX_LENGTH = 1000  # characters of a name: SB3 raises if shortened names are equal


class _StandardOutput:
    """Writes to the current `sys.stdout`: a live view replaces it, so that tables go above the view."""

    def write(self, text: str) -> None:
        LenientStream(sys.stdout).write(text)

    def flush(self) -> None:
        LenientStream(sys.stdout).flush()


class PrintedMetrics(KVWriter):
    """Prints a table of the metrics of each iteration, as SB3 does with `verbose=1`."""

    def __init__(self) -> None:
        self._table = HumanOutputFormat(_StandardOutput(), max_length=_MAX_LENGTH)  # type: ignore[arg-type]
        self._show: Guard[None] = Guard(lambda: None)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Print the table; after a failure, which is logged, nothing more is printed."""
        self._show(self._table.write, key_values, key_excluded, step)

    def close(self) -> None:
        """Do nothing."""
