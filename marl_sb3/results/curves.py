"""Learning curves over seeds: the runs of each group on common points, their mean, and a bootstrap band."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from marl_sb3.core.config.values import counted
from marl_sb3.core.metrics.statistics import bootstrap_interval, interquartile_mean, mean
from marl_sb3.errors import ConfigError, refuse, require_known
from marl_sb3.results.records import AGENT_RETURNS, AGENT_STEPS, RETURN, SECONDS, STEPS, Groups, RunRecord
from marl_sb3.types import Array

AXES: Mapping[str, str] = {"steps": STEPS, "agent_steps": AGENT_STEPS, "seconds": SECONDS}
STATISTICS: Mapping[str, tuple[str, Callable[[Array], Array]]] = {
    "mean": ("mean", mean),
    "iqm": ("interquartile mean", interquartile_mean),
}
_AXIS_WORDS = {"steps": "env steps", "agent_steps": "agent steps", "seconds": "seconds of training"}
# Up to which ratio runs count as equally long: iterations may differ, and no two trainings take the same time.
SAME_END = {"steps": 1.02, "agent_steps": 1.02, "seconds": 1.25}
_POINTS = 200
_NAMES = {RETURN: "sum of returns", AGENT_RETURNS: "return of each agent"}
_LEVEL = 0.95
_MOST_NAMED = 2  # groups in a note below a figure


@dataclass(frozen=True)
class Curve:
    """A metric of a group of runs."""

    group: str  # label of the runs
    part: str  # of a metric of several parts, such as agents, which one; empty: there is one
    x: Array  # (P,)
    center: Array  # (P,) the statistic over the runs
    low: Array | None = None  # (P,) lower bound of the 95 % bootstrap band; None: there is one run
    high: Array | None = None  # (P,) upper bound
    n: int = 1  # number of runs
    ends: Array = field(default_factory=lambda: np.empty(0))  # (R,) values of the runs at the end


@dataclass(frozen=True)
class Panel:
    """The curves of one metric."""

    metric: str  # its flat name, or a pattern
    title: str  # what it is called in a figure
    curves: Sequence[Curve]  # those of each group, and of each part of the metric


@dataclass(frozen=True)
class Figure:
    """What a figure shows."""

    panels: Sequence[Panel]  # a panel for each metric
    x_label: str  # what the x axis counts
    caption: str = ""  # the statistic, the band, the number of runs and the smoothing
    # further remarks for the reader, such as runs of other lengths
    notes: Sequence[str] = field(default_factory=tuple)
    title: str = ""  # of a picture or page of its own: the names of the envs

    @property
    def groups(self) -> list[str]:
        """All labels."""
        return list(dict.fromkeys(curve.group for panel in self.panels for curve in panel.curves))

    @property
    def parts(self) -> list[str]:
        """All parts of metrics, such as agents."""
        return [part for part in dict.fromkeys(c.part for panel in self.panels for c in panel.curves) if part]


def draw_up(
    groups: Groups, metrics: Sequence[str] = (), axis: str = "steps", statistic: str = "mean", smooth: int = 1
) -> Figure:
    """Compute what a figure of learning curves shows.

    Args:
        metrics: flat names or patterns of them, a panel each; a name that others are below, such as
            `env_runners/agent_episode_returns_mean`, is a panel with all of them. Empty: the sum of returns, and the
            returns of the agents.
        axis: one of `AXES`.
        statistic: one of `STATISTICS`.
        smooth: iterations of the moving average; 1: none.

    Raises:
        ConfigError: no run has a metric, the runs have none in common, or an argument is not accepted.
    """
    for name, value, known in (("axis", axis, AXES), ("statistic", statistic, STATISTICS)):
        require_known(value, known, f"{name} is {value!r}", f"--{name}")
    if smooth < 1:
        refuse("smooth", smooth, "at least 1, in iterations", "--smooth")
    notes: list[str] = []
    panels = [_panel(groups, metric, axis, statistic, smooth, notes) for metric in metrics or _default_metrics(groups)]
    single = [label for label, records in groups.runs.items() if len(records) == 1]
    if single and len(single) == len(groups.runs):
        notes.append(f"one run{' each' if len(single) > 1 else ''}, so there is no interval")
    elif single:
        some = ", ".join(single) if len(single) <= _MOST_NAMED else f"{len(single)} of the {len(groups.runs)} groups"
        notes.append(f"one run, and so no interval: {some}")
    words, smoothing = STATISTICS[statistic][0], f"moving average over {smooth} iterations" if smooth > 1 else ""
    numbers = sorted({len(records) for records in groups.runs.values()})
    runs = f"{' to '.join(map(str, [numbers[0], numbers[-1]][: len(numbers)]))} run{'s' if numbers[-1] > 1 else ''}"
    band = "" if len(single) == len(groups.runs) else ", band: 95 % bootstrap interval"
    caption = "; ".join(filter(None, [f"{words} of {runs}{band}" if numbers[-1] > 1 else "", smoothing]))
    title = ", ".join(dict.fromkeys(record.env for record in groups.all))
    return Figure(panels, _AXIS_WORDS[axis], caption, tuple(dict.fromkeys(notes)), title)


def _default_metrics(groups: Groups) -> list[str]:
    agents = dict.fromkeys(agent for record in groups.all for agent in record.agents)
    if not any(RETURN in record.metrics for record in groups.all):
        common = set.intersection(*(set(record.metrics) for record in groups.all))
        names = ", ".join(sorted(common)[:8])
        hint = f"accepted: --metric of {names}" if names else "they have no metric in common"
        raise ConfigError(f"the runs have no {RETURN}; {hint}", key="--metric")
    return [RETURN, AGENT_RETURNS] if len(agents) > 1 else [RETURN]


def _panel(groups: Groups, metric: str, axis: str, statistic: str, smooth: int, notes: list[str]) -> Panel:
    known = list(dict.fromkeys(name for record in groups.all for name in record.metrics))
    names = [metric] if metric in known else fnmatch.filter(known, metric) or fnmatch.filter(known, f"{metric}/*")
    if not names:
        groups.require_metric(metric)
    prefix = metric.rstrip("*").rstrip("/")
    curves = []
    for label, records in groups.runs.items():
        for name in names:
            having = [record for record in records if name in record.metrics]
            if len(having) < len(records):
                notes.append(f"{counted(len(records) - len(having), 'run')} of {label} without {name}")
            if having:
                part = "" if name == metric else name.removeprefix(f"{prefix}/")
                curves.append(_curve(label, part, having, name, axis, statistic, smooth, notes))
    return Panel(metric, _NAMES.get(metric, metric), curves)


def _curve(
    label: str,
    part: str,
    records: Sequence[RunRecord],
    name: str,
    axis: str,
    statistic: str,
    smooth: int,
    notes: list[str],
) -> Curve:
    points = [points_of(record, name, axis, smooth) for record in records]
    if any(len(x) == 0 for x, _ in points):
        raise ConfigError(f"{label} has no {_AXIS_WORDS[axis]} beside {name}; accepted: another axis", key="--axis")
    starts, ends = (np.array([x[end] for x, _ in points]) for end in (0, -1))
    start, end = starts.max(), ends.min()
    if ends.max() > SAME_END[axis] * ends.min():
        between = f"between {ends.min():,.0f} and {ends.max():,.0f} {_AXIS_WORDS[axis]}"
        notes.append(f"{label}: runs end {between}; where one has ended, the curve is that of the others")
        start, end = start if start <= end else starts.min(), ends.max()
    one = points[0][0]
    shared = all(np.array_equal(x, one) for x, _ in points)
    bounds = [each for each in (*starts, *ends) if start <= each <= end]
    grid = one if shared else np.unique([*np.linspace(start, max(start, end), _POINTS), *bounds])
    values = np.array([np.interp(grid, x, y, left=math.nan, right=math.nan) for x, y in points])
    center, low, high = _over_runs(values, STATISTICS[statistic][1])
    ends = np.array([y[-1] for _, y in points])
    if len(points) == 1:
        return Curve(label, part, grid, center, ends=ends)
    return Curve(label, part, grid, center, low, high, len(points), ends)


def _over_runs(values: Array, of_runs: Callable[[Array], Array]) -> tuple[Array, Array, Array]:
    """A statistic over runs at each point and the bounds of its interval, of the runs that are there.

    Args:
        values: (runs, P); NaN where a run has not begun or has ended.

    Returns:
        (P,) each; NaN where there is no run, and for the bounds, where there is but one.
    """
    center, low, high = (np.full(values.shape[1], math.nan) for _ in range(3))
    there = np.isfinite(values)
    for runs in np.unique(there, axis=1).T:
        at = (there == runs[:, None]).all(axis=0)
        if runs.any():
            center[at] = of_runs(values[runs][:, at])
        if runs.sum() > 1:
            low[at], high[at] = bootstrap_interval(values[runs][:, at], of_runs, _LEVEL)
    return center, low, high


def points_of(record: RunRecord, name: str, axis: str = "steps", smooth: int = 1) -> tuple[Array, Array]:
    """Return the points of a run, without iterations that have no value, and with a moving average if `smooth` > 1."""
    x, y = record.progress(AXES[axis]), record.column(name)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if smooth > 1 and len(y):
        width = min(smooth, len(y))
        sums = np.cumsum(np.concatenate([[0.0], y]))
        begins = np.maximum(0, np.arange(1, len(y) + 1) - width)
        y = (sums[1:] - sums[begins]) / (np.arange(1, len(y) + 1) - begins)
    return x, y
