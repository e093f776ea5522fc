"""Numbers, durations and trends as short text, and text that is safe to print."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from marl_sb3.output import printable

_COMMAND = re.compile(r"(python -m marl_sb3|marl-sb3 )('[^']*'|[^);'])*")
_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"


def number(value: Any, digits: int = 2) -> str:
    """Format a number with thousands separators; None is a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def between(bounds: tuple[float, float] | None) -> str:
    """Format an interval: `1.20 to 3.40`; None is a dash."""
    return "-" if bounds is None else " to ".join(map(number, bounds))


def short(value: Any) -> str:
    """Format a value of any kind; floats have four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def one_line(text: object) -> str:
    r"""Text on one line: white space becomes a space, and other unprintable characters are escaped, ESC as `\x1b`."""
    return printable(" ".join(str(text).split()))


def markdown_text(text: object) -> str:
    """Text on one line, in which nothing is Markdown or HTML."""
    escaped = one_line(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{char}" if char in "|`*[]\\" else char for char in escaped)


def duration(seconds: float | None) -> str:
    """Format seconds as hours, minutes and seconds, such as `0:01:23`; None is a dash."""
    if seconds is None:
        return "-"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}"


def sparkline(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """Draw a bar for each value, scaled from the lowest to the highest; empty for fewer than two values."""
    bars = _ASCII_BARS if ascii_only else _BARS
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    if high == low:
        return bars[len(bars) // 2] * len(values)
    # Halved first: the difference of two large floats must not overflow.
    return "".join(bars[round((value / 2 - low / 2) / (high / 2 - low / 2) * (len(bars) - 1))] for value in values)


def packed(parts: Iterable[str], width: int) -> list[str]:
    """Join parts into as few lines of at most `width` characters as possible; a part is never broken."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(part)
    return lines


def folded(text: str, width: int) -> str:
    """Break lines of more than `width` characters between words; commands, to be copied, and longer words are kept.

    Without a width, as of a terminal that has not said it, the text stays as it is.
    """

    def broken(line: str) -> str:
        kept = _COMMAND.sub(lambda found: found[0].replace(" ", "\0"), line)
        lines = wrap(kept, width, break_long_words=False, break_on_hyphens=False, expand_tabs=False)
        return "\n".join(lines).replace("\0", " ")

    return "\n".join(broken(line) if 0 < width < len(line) else line for line in text.split("\n"))


def short_path(path: Path) -> Path:
    """Return the path, relative if it is in the working folder."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
