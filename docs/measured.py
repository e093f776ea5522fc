"""The figures of `measurements.yaml`, as pages write them: one place for each, however many pages show it."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from typing import Any

import yaml

_FILE = Path(__file__).with_name("measurements.yaml")
_PLACE = re.compile(r"\{(\w+)(?:\.(range)|/(\w+))?\}")


def read() -> dict[str, Any]:
    """Return the content of the file: `figures` and `pages`."""
    content: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return content


def turns(name: str) -> list[float]:
    """Return what was measured, a number for each turn."""
    numbers: list[float] = read()["figures"][name]["turns"]
    return numbers


def in_page(page: str, text: str) -> str:
    """Return the text of a page with the figures of the file.

    Args:
        page: its path in the repository.

    Raises:
        ValueError: the page lacks a line that the file names.
    """
    for template in read()["pages"].get(page, ()):
        pattern = "[^|\n]+?".join(map(re.escape, _PLACE.split(template)[::4]))
        line = _PLACE.sub(_written, template)
        text, found = re.subn(f"^{pattern}$", lambda _, line=line: line, text, flags=re.MULTILINE)  # type: ignore[misc]
        if found != 1:
            raise ValueError(f"{page} has {found} lines like {template!r}; accepted: one")
    return text


def _written(place: re.Match[str]) -> str:
    name, spread, other = place.groups()
    middle = median(turns(name))
    if other:
        return f"{middle / median(turns(other)):.1f}"
    return f"{middle:,} ({min(turns(name)):,} to {max(turns(name)):,})" if spread else f"{middle:,}"
