"""Is one experiment better than another? The same statistics that decide a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.core.config.values import counted
from marl_sb3.core.metrics.statistics import (
    SampleStats,
    difference_interval,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    sample_stats,
)
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.extensions.display.page import note
from marl_sb3.extensions.display.tables import Table
from marl_sb3.extensions.display.text import between, number
from marl_sb3.results.curves import SAME_END, Curve, Figure, Panel, draw_up, points_of
from marl_sb3.results.drawing import matplotlib_figure
from marl_sb3.results.reading import read_records
from marl_sb3.results.records import RETURN, UNSET, Groups, group_by_argument, short_name
from marl_sb3.types import Array

LEAST_SEEDS = 3  # of fewer, nothing is decided
_GOOD_SEEDS = 5  # of fewer, intervals are said to be rough
_LEVEL = 0.95
_PROFILE_POINTS = 101


@dataclass(frozen=True)
class Reached:
    """How soon the runs of a group reached a threshold."""

    n: int  # how many of the runs did
    of: int  # number of runs
    env_steps: float | None  # median env steps of those that did; None: none did
    seconds: float | None  # median seconds of training of those that did


@dataclass(frozen=True)
class Sample:
    """What the runs of a group came to."""

    label: str  # what the group is called
    finals: Sequence[float]  # the metric at the end of each run
    stats: SampleStats  # of these
    iqm: float  # their interquartile mean
    reached: Reached  # how soon they reached the threshold


@dataclass(frozen=True)
class Pair:
    """A group beside the first one."""

    label: str  # of the group
    baseline: str  # of the first one
    difference: float  # of the means, group minus baseline
    # of the difference, at 95 % for all pairs together (Welch); None: too few seeds
    interval: tuple[float, float] | None
    improvement: float  # probability that a run of the group is better than one of the baseline
    # 95 %, bootstrap; None: too few seeds, or all runs of one group are better than all of the other, so that each
    # resample gives the same and the bootstrap says nothing
    improvement_interval: tuple[float, float] | None
    verdict: str  # `better`, `worse`, `undecided` or `too few seeds`

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        if self.verdict in ("better", "worse"):
            return f"{self.label} is {self.verdict} than {self.baseline}"
        if self.verdict == "undecided":
            return f"undecided between {self.label} and {self.baseline}"
        return f"too few seeds to compare {self.label} with {self.baseline}: at least {LEAST_SEEDS} of each are needed"

    def why_no_interval(self, ours: int, theirs: int) -> str | None:
        """Say why there is no interval of the probability, if there are enough runs, so many of each group."""
        if self.improvement_interval is not None or self.verdict == "too few seeds":
            return None
        if 0.0 < self.improvement < 1.0:
            return f"all runs of {self.label} and {self.baseline} end alike: P(better) has no interval"
        chance = 2 / math.comb(ours + theirs, ours)  # of all orders of the runs, those with one group before the other
        worse = "no run" if self.improvement == 0.0 else "every run"
        better = "any" if self.improvement == 0.0 else "every one"
        found = (
            f"{worse} of {self.label} is better than {better} of {self.baseline}, which says no more about P(better)"
        )
        like_this = f"of {ours} and {theirs} runs of the same settings, one group is ahead like this"
        return f"{found}; {like_this} in {100 * chance:.2g} %"


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, compared by a metric at the end of the runs."""

    metric: str  # its flat name
    mode: str  # `max`: more is better; `min`: less is
    threshold: float  # the value that is to be reached; when each run reached it is reported
    samples: Sequence[Sample]  # of each group, the baseline first
    pairs: Sequence[Pair]  # each other group beside the baseline
    # name -> label -> value, of the settings in which the groups differ; `UNSET` where a run has none
    settings: Mapping[str, Mapping[str, Any]]
    notes: Sequence[str]  # remarks for the reader
    figure: Figure  # the learning curves

    def profile(self) -> tuple[Array, dict[str, Array]]:
        """Return thresholds, and of each group the share of runs above each."""
        every = [value for sample in self.samples for value in sample.finals]
        thresholds = np.linspace(min(every), max(every), _PROFILE_POINTS)
        return thresholds, {s.label: performance_profile(s.finals, thresholds) for s in self.samples}

    @property
    def profile_figure(self) -> Figure:
        """The performance profiles as a figure."""
        thresholds, shares = self.profile()
        curves = [Curve(label, "", thresholds, share) for label, share in shares.items()]
        return Figure([Panel(self.metric, "share of runs above it", curves)], self.figure.panels[0].title)

    def to_plain(self) -> dict[str, Any]:
        """Return everything but the curves as plain data for JSON."""
        thresholds, shares = self.profile()
        return {
            "metric": self.metric,
            "mode": self.mode,
            "threshold": self.threshold,
            "samples": [asdict(sample) for sample in self.samples],
            "pairs": [{**asdict(pair), "sentence": pair.sentence} for pair in self.pairs],
            "settings": {
                name: {label: value for label, value in of.items() if value is not UNSET}
                for name, of in self.settings.items()
            },
            "profile": {
                "thresholds": thresholds.tolist(),
                "shares": {label: each.tolist() for label, each in shares.items()},
            },
            "notes": list(self.notes),
        }

    def plot(self) -> Any:
        """Plot the learning curves; returns a `matplotlib.figure.Figure`, which notebooks show."""
        return matplotlib_figure(self.figure)

    def _repr_html_(self) -> str:
        """Return the comparison as notebooks show it: the verdict and the tables."""
        shown = [note(summary(self)), *(table.html() for table in tables(self) if table.rows)]
        return "".join([*shown, *map(note, self.notes)])

    def __repr__(self) -> str:
        return f"<Comparison by {self.metric}: {'; '.join(pair.sentence for pair in self.pairs)}>"


def compare(
    runs: Mapping[str, Any] | Sequence[Any],
    metric: str = RETURN,
    *,
    mode: str = "max",
    threshold: float | None = None,
) -> Comparison:
    """Compare experiments, each with several seeds.

    Args:
        runs: two or more experiments: a path as for `python -m marl_sb3.compare`, a `Run`, or a sequence of these, the
            seeds of one experiment; by label, or without labels. The first one is the baseline. A run that is in two
            of them counts in the first one alone, and a note says so.
        metric: flat name of the metric; its last value of each run is compared.
        mode: `max` if more is better, `min` if less is.
        threshold: value that is to be reached; None: one that most runs reach.

    Raises:
        ConfigError: there is no run, the runs have no such metric, or all runs of an experiment are in former ones.
    """
    named = runs if isinstance(runs, Mapping) else {_name_of(each, i): each for i, each in enumerate(runs)}
    if not isinstance(runs, Mapping) and len(named) < len(runs):
        raise ConfigError("two experiments are the same; accepted: different ones, or a mapping from labels", key="run")
    groups = group_by_argument(
        {
            label: [record for one in _sequence(each) for record in read_records(getattr(one, "folder", one))]
            for label, each in named.items()
        }
    )
    return _compared(groups, metric, mode, threshold)


def _sequence(value: Any) -> Sequence[Any]:
    return [value] if isinstance(value, (str, Path)) or hasattr(value, "folder") else list(value)


def _name_of(value: Any, place: int) -> str:
    first = _sequence(value)
    return str(getattr(first[0], "folder", first[0])) if len(first) == 1 else f"experiment {place + 1}"


def _compared(groups: Groups, metric: str, mode: str, threshold: float | None) -> Comparison:
    if mode not in ("max", "min"):
        refuse("mode", mode, "max, min", "--mode")
    if len(groups.runs) < 2:
        (label,) = groups.runs
        raise ConfigError(f"only {label} is given; accepted: two experiments or more", key="run")
    groups.require_metric(metric)
    without = [label for label, records in groups.runs.items() if not any(metric in each.metrics for each in records)]
    if without:
        raise ConfigError(f"{without[0]} has no {metric}; accepted: a metric that all have", key="--metric")
    figure = draw_up(groups, [metric])
    sign = 1.0 if mode == "max" else -1.0
    finals = {
        label: [float(points_of(record, metric)[1][-1]) for record in records if metric in record.metrics]
        for label, records in groups.runs.items()
    }
    if threshold is None:  # what the weaker group has on average: most runs of the others reach it
        threshold = sign * min(sign * float(np.mean(values)) for values in finals.values())
    samples = [
        Sample(
            label,
            values,
            sample_stats(values),
            float(interquartile_mean(np.array(values))),
            _reached(groups, label, metric, sign, threshold),
        )
        for label, values in finals.items()
    ]
    baseline, *others = samples
    pairs = [_pair(baseline, each, sign, len(others)) for each in others]
    few = [each.label for each in samples if LEAST_SEEDS <= each.stats.n < _GOOD_SEEDS]
    notes = [*groups.warnings, *figure.notes, *_other_lengths(groups, metric)]
    notes += [f"fewer than {_GOOD_SEEDS} seeds of {', '.join(few)}: intervals are rough"] if few else []
    counts = {each.label: each.stats.n for each in samples}
    unknown = (pair.why_no_interval(counts[pair.label], counts[pair.baseline]) for pair in pairs)
    notes += [words for words in unknown if words is not None]
    return Comparison(metric, mode, threshold, samples, pairs, groups.differing, notes, figure)


def _other_lengths(groups: Groups, metric: str) -> list[str]:
    """Say that the runs of one group end after other numbers of env steps than those of another one."""
    ends = {
        label: float(np.median([x[-1] for record in records for x, _ in [points_of(record, metric)] if len(x)]))
        for label, records in groups.runs.items()
    }
    if max(ends.values()) <= SAME_END["steps"] * min(ends.values()):
        return []
    first, *others = (f"{label} at {end:,.0f}" for label, end in ends.items())
    words = ", ".join([f"{first} env steps", *others])
    return [f"runs end at different env steps, and their last values are compared: {words}"]


def _reached(groups: Groups, label: str, metric: str, sign: float, threshold: float) -> Reached:
    steps, seconds = list[float](), list[float]()
    records = [record for record in groups.runs[label] if metric in record.metrics]
    for record in records:
        for axis, found in (("steps", steps), ("seconds", seconds)):
            x, y = points_of(record, metric, axis)
            there = np.flatnonzero(sign * y >= sign * threshold)
            if len(there):
                found.append(float(x[there[0]]))
    n = max(len(steps), len(seconds))
    return Reached(n, len(records), *(float(np.median(found)) if found else None for found in (steps, seconds)))


def _pair(baseline: Sample, other: Sample, sign: float, comparisons: int) -> Pair:
    ours, theirs = ([sign * value for value in each.finals] for each in (other, baseline))
    difference = math.fsum(other.finals) / len(ours) - math.fsum(baseline.finals) / len(theirs)
    improvement, *bounds = probability_of_improvement(ours, theirs, _LEVEL)
    if min(len(ours), len(theirs)) < LEAST_SEEDS:
        return Pair(other.label, baseline.label, difference, None, improvement, None, "too few seeds")
    low, high = difference_interval(ours, theirs, _LEVEL, comparisons)
    verdict = "better" if low > 0 else "worse" if high < 0 else "undecided"
    interval = (low, high) if sign > 0 else (-high, -low)
    likely = (bounds[0], bounds[1]) if bounds[0] < bounds[1] else None
    return Pair(other.label, baseline.label, difference, interval, improvement, likely, verdict)


# --- Words -----------------------------------------------------------------------------------------------------------


def tables(found: Comparison) -> tuple[Table, Table, Table]:
    """Return the tables of the groups, of the pairs, and of the settings in which the groups differ."""
    head = ["experiment", "runs", "mean", "95 % interval", "IQM", f"reached {number(found.threshold)}"]
    groups = [
        [
            sample.label,
            str(sample.stats.n),
            number(sample.stats.mean),
            between(sample.stats.ci95),
            number(sample.iqm),
            f"{sample.reached.n} of {sample.reached.of}",
            "-" if sample.reached.env_steps is None else f"{sample.reached.env_steps:,.0f}",
            "-" if sample.reached.seconds is None else f"{sample.reached.seconds:,.1f}",
        ]
        for sample in found.samples
    ]
    pairs = [
        [
            pair.label,
            number(pair.difference),
            between(pair.interval),
            number(pair.improvement),
            between(pair.improvement_interval),
            pair.verdict,
        ]
        for pair in found.pairs
    ]
    labels = [sample.label for sample in found.samples]
    settings = [
        [short_name(name), *("null" if values[label] is None else str(values[label]) for label in labels)]
        for name, values in found.settings.items()
    ]
    return (
        Table([*head, "env steps to it", "seconds to it"], groups),
        Table([f"against {labels[0]}", "difference", "95 % interval", "P(better)", "95 % interval", ""], pairs),
        Table(["setting", *labels], settings),
    )


def summary(found: Comparison) -> str:
    """Say what was found, a sentence for each pair."""
    called = "" if (title := found.figure.panels[0].title) == found.metric else f" ({title})"
    runs = counted(sum(len(sample.finals) for sample in found.samples), "run")
    return f"By {found.metric}{called} at the end of {runs}: {'; '.join(pair.sentence for pair in found.pairs)}."
