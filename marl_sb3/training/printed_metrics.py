"""SB3's table of metrics on standard output, which ends no training."""

from __future__ import annotations

import sys
from typing import Any

from stable_baselines3.common.logger import HumanOutputFormat, KVWriter

from marl_sb3.display.guard import Guard
from marl_sb3.output import LenientStream

_MAX_LENGTH = 1000  # characters of a name: SB3 raises where names look alike when they are cut


class _StandardOutput:
    """What `sys.stdout` is at the moment: while a live view is shown, tables go above it."""

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
        """Print; the first failure is reported, and the last thing printed."""
        self._show(self._table.write, key_values, key_excluded, step)

    def close(self) -> None:
        """Nothing is held."""
