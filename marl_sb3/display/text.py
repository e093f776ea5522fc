"""Numbers, durations and trends as short texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"


def number(value: Any, digits: int = 2) -> str:
    """A number for people; a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds, as `0:01:23`."""
    if seconds is None:
        return "-"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}"


def sparkline(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """A small bar for each value, from the lowest one to the highest one; empty for fewer than two values."""
    bars = _ASCII_BARS if ascii_only else _BARS
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    if high == low:
        return bars[len(bars) // 2] * len(values)
    # Halved first: the difference of two large floats must not overflow.
    return "".join(bars[round((value / 2 - low / 2) / (high / 2 - low / 2) * (len(bars) - 1))] for value in values)


def packed(parts: Iterable[str], width: int, separator: str = "  ") -> list[str]:
    """Parts joined to as few lines as they need, without breaking one; each line fits where each part does."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(separator) + len(part) <= width:
            lines[-1] += separator + part
        else:
            lines.append(part)
    return lines
