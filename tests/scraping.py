"""Reads a server's metrics by Prometheus's own parser."""

from __future__ import annotations

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families


def scraped(address: str, **how: Any) -> dict[str, float]:
    """The samples of `/metrics`, by name and labels as they are written."""
    answer = httpx.get(f"{address}/metrics", **how)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, float] = {}
    for name, labels, value, *_ in (each for of in text_string_to_metric_families(answer.text) for each in of.samples):
        pairs = ",".join(f'{label}="{text}"' for label, text in labels.items())
        found[f"{name}{{{pairs}}}" if pairs else name] = value
    return found
