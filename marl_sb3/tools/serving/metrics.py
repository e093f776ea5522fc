"""Metrics of a server in Prometheus's text format, by its client library, and what every server counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper bounds of buckets. Of times, in seconds: from a small network here to an update that clients wait for.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = tuple(float(2**power) for power in range(13))  # 1 to 4096
OTHER_ROUTE = "other"  # the route of what is no route of the server: clients must not make labels

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # times of the first samples
Histogram = partial(prometheus_client.Histogram, registry=None)  # each server has its own


def gauge(name: str, words: str, value: float, **labels: str) -> Metric:
    """Return a metric with one sample, which may fall."""
    return gauges(name, words, list(labels), {tuple(labels.values()): value})


def gauges(name: str, words: str, labels: Sequence[str], values: Mapping[Any, float]) -> Metric:
    """Return a metric with a sample for each combination of values of its labels; they may fall."""
    return _filled(GaugeMetricFamily(name, words, labels=labels), values)


def counters(name: str, words: str, labels: Sequence[str], counts: Mapping[Any, float]) -> Metric:
    """Return a metric with a sample for each combination of values of its labels; they only rise."""
    return _filled(CounterMetricFamily(name, words, labels=labels), counts)


def _filled(family: Any, values: Mapping[Any, float]) -> Metric:
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
    return family  # type: ignore[no-any-return]


def exposition(families: Iterable[Metric]) -> str:
    """Return metrics in the text format."""
    registry: Any = SimpleNamespace(collect=lambda: families)
    return prometheus_client.generate_latest(registry).decode()


class RequestMetrics:
    """What a server counts of its requests, in the thread of its event loop."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, ...]] = Counter()  # route and status -> number of requests
        self.in_flight = self.websockets = 0  # now
        words = "Time from the head of a request to the end of its answer, or until its client had gone."
        name = "marl_sb3_http_request_duration_seconds"
        self._seconds = Histogram(name, words, labelnames=["route"], buckets=SECONDS)

    def answered(self, route: str, status: str, seconds: float) -> None:
        """Count a request.

        Args:
            route: one of the server's, or `other`.
            status: of the answer; `gone`: the client had gone before it began.
            seconds: see the metric's words.
        """
        self.requests[route, status] += 1
        self._seconds.labels(route).observe(seconds)

    def families(self) -> list[Metric]:
        """Return the metrics, and those of the process where the system tells them."""
        words = "Requests by the status of their answer; gone: the client had gone before; 101: a WebSocket."
        return [
            counters("marl_sb3_http_requests_total", words, ("route", "status"), self.requests),
            *self._seconds.collect(),
            gauge("marl_sb3_http_requests_in_flight", "Requests that are not answered yet.", self.in_flight),
            gauge("marl_sb3_websockets", "Open WebSockets: viewers of the page.", self.websockets),
            *prometheus_client.ProcessCollector(registry=None).collect(),
        ]
