"""Metrics of a server in Prometheus's text format, version 0.0.4, and what every server counts.

Written here, not by the package `prometheus_client`: the format is a page, and has been the same since 2014, and so
every server has metrics without one more package. Its parser reads them in the tests.
https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from marl_sb3.systems import IS_WINDOWS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Upper bounds of buckets. Of times, in seconds: from a small network here to an update that clients wait for.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = tuple(float(2**power) for power in range(13))  # 1 to 4096
OTHER_ROUTE = "other"  # the route of what is no route of the server: clients must not make labels


class Sample(NamedTuple):
    """A line: a number with its labels; `suffix` is added to the name of its family."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""


@dataclass(frozen=True)
class Family:
    """All samples of a metric."""

    name: str  # with its unit at the end; counters end in `_total`
    kind: Literal["counter", "gauge", "histogram"]
    words: str  # what it is
    samples: Sequence[Sample]


def gauge(name: str, words: str, value: float, **labels: str) -> Family:
    """Return a metric with one sample, which may fall."""
    return Family(name, "gauge", words, [Sample(value, labels)])


def counter(name: str, words: str, value: float) -> Family:
    """Return a metric with one sample, which only rises."""
    return Family(name, "counter", words, [Sample(value)])


def counters(name: str, words: str, labels: Sequence[str], counts: Mapping[tuple[str, ...], float]) -> Family:
    """Return a metric with a sample for each combination of values of its labels; they only rise."""
    samples = [Sample(count, dict(zip(labels, values, strict=True))) for values, count in sorted(counts.items())]
    return Family(name, "counter", words, samples)


class Histogram:
    """Counts values in buckets, and adds them up.

    Args:
        name, words: see `Family`.
        bounds: the largest value of each bucket, rising. One more bucket has what is above the last of them.
        label: the name of a label, by whose values it counts apart; "": it has none.
    """

    def __init__(self, name: str, words: str, bounds: Sequence[float], label: str = "") -> None:
        self._name, self._words, self._bounds, self._label = name, words, bounds, label
        # Value of the label -> number of values in each bucket, and their sum. Without labels, it is there at once.
        self._counts: dict[str, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self._sums: dict[str, float] = defaultdict(float, {} if label else {"": 0.0})

    def observe(self, value: float, of: str = "") -> None:
        """Count a value; `of` is that of the label."""
        self._counts[of][bisect_left(self._bounds, value)] += 1
        self._sums[of] += value

    def family(self) -> Family:
        """Return what was counted."""
        return Family(self._name, "histogram", self._words, list(self._samples()))

    def _samples(self) -> Iterator[Sample]:
        for of, total in sorted(self._sums.items()):
            labels, below = {self._label: of} if self._label else {}, 0
            for bound, count in zip((*self._bounds, math.inf), self._counts[of], strict=True):
                below += count  # a bucket has all values up to its bound
                yield Sample(below, {**labels, "le": _number(float(bound))}, "_bucket")
            yield Sample(total, labels, "_sum")
            yield Sample(below, labels, "_count")


# --- Text ------------------------------------------------------------------------------------------------------------


def exposition(families: Iterable[Family]) -> str:
    """Return metrics in the text format."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped(family.words)}"
    yield f"# TYPE {family.name} {family.kind}"
    for value, labels, suffix in family.samples:
        pairs = ",".join(f'{name}="{_escaped(text, quoted=True)}"' for name, text in labels.items())
        yield f"{family.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {_number(value)}"


def _escaped(text: str, *, quoted: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quoted else escaped


def _number(value: float) -> str:
    """Write a number as Go reads it."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))


# --- What every server counts ----------------------------------------------------------------------------------------


class RequestMetrics:
    """What a server counts of its requests, in the thread of its event loop."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, ...]] = Counter()  # route and status -> number of requests
        self.in_flight = self.websockets = 0  # now
        words = "Time from the head of a request to the end of its answer, or until its client had gone."
        self._seconds = Histogram("marl_sb3_http_request_duration_seconds", words, SECONDS, "route")

    def answered(self, route: str, status: str, seconds: float) -> None:
        """Count a request.

        Args:
            route: one of the server's, or `other`.
            status: of the answer; `gone`: the client had gone before it began.
            seconds: see the metric's words.
        """
        self.requests[route, status] += 1
        self._seconds.observe(seconds, route)

    def refused(self, status: int) -> None:
        """Count a connection that was refused before it had sent a request."""
        self.requests[OTHER_ROUTE, str(status)] += 1

    def families(self) -> list[Family]:
        """Return the metrics."""
        words = "Requests by the status of their answer; gone: the client had gone before; 101: a WebSocket."
        return [
            counters("marl_sb3_http_requests_total", words, ("route", "status"), self.requests),
            self._seconds.family(),
            gauge("marl_sb3_http_requests_in_flight", "Requests that are not answered yet.", self.in_flight),
            gauge("marl_sb3_websockets", "Open WebSockets: viewers of the page.", self.websockets),
        ]


def process_families() -> list[Family]:
    """Return the metrics of this process, by the names that all of Prometheus's clients have for them."""
    import psutil

    process = psutil.Process()
    with process.oneshot():
        cpu, start_s, resident = process.cpu_times(), process.create_time(), process.memory_info().rss
    families = [
        counter("process_cpu_seconds_total", "Processor time, of the user and of the system.", cpu.user + cpu.system),
        gauge("process_resident_memory_bytes", "Resident memory.", resident),
        gauge("process_start_time_seconds", "When the process started, in seconds since 1970.", start_s),
    ]
    if not IS_WINDOWS:
        families.append(gauge("process_open_fds", "Open file descriptors.", process.num_fds()))
    return families
