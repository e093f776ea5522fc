"""Reads a server's metrics, more strictly than Prometheus does."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import httpx

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
TEXT = r'"(?:[^"\\\n]|\\["\\n])*"'
LABELS = re.compile(rf"\{{{NAME}={TEXT}(?:,{NAME}={TEXT})*\}}")
LINE = re.compile(rf"({NAME})({LABELS.pattern})? ([-+]?(?:Inf|[0-9.e+-]+)|NaN)")


def scraped(address: str, **how: Any) -> dict[str, float]:
    """The samples of `/metrics`, by name and labels as they are written."""
    answer = httpx.get(f"{address}/metrics", **how)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return samples(answer.text)


def samples(text: str) -> dict[str, float]:
    """The samples of a text, whose form is checked: one block for each metric, which begins with HELP and TYPE."""
    assert text.endswith("\n")
    found: dict[str, float] = {}
    blocks = text.removesuffix("\n").split("# HELP ")[1:]
    assert len({block.partition(" ")[0] for block in blocks}) == len(blocks)
    for block in blocks:
        head, kind_line, *lines = block.removesuffix("\n").split("\n")
        name = head.partition(" ")[0]
        kind = kind_line.removeprefix(f"# TYPE {name} ")
        assert kind in ("counter", "gauge", "histogram")
        assert name.endswith("_total") == (kind == "counter")
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        for line in lines:
            matched = LINE.fullmatch(line)
            assert matched is not None, line
            assert matched[1].removeprefix(name) in suffixes, line
            assert matched[1] + (matched[2] or "") not in found, line
            found[matched[1] + (matched[2] or "")] = float(matched[3])
        buckets = [line for line in lines if line.startswith(f"{name}_bucket")]
        for one, other in pairwise(buckets):
            is_last = 'le="+Inf"' in one  # those of other labels follow
            assert is_last or float(one.rpartition(" ")[2]) <= float(other.rpartition(" ")[2])
    return found
