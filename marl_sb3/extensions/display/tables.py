"""Tables for terminals, pages and Markdown; those of the returns of a training, and of episodes of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any

from rich import table as rich
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from typing_extensions import override

from marl_sb3.core.metrics.names import Result
from marl_sb3.core.metrics.statistics import SampleStats, sample_stats
from marl_sb3.extensions.display import page
from marl_sb3.extensions.display.page import Html
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.display.text import between, markdown_text, number
from marl_sb3.types import AgentID

MOST_AGENTS = 8  # in a table; of more agents, the best and the worst are shown
_GAP = 2  # characters between columns
_SHORTEST_LABEL = 8
_SHORTEST_TREND = 6

SUM = "episode_return_mean"
LENGTH = "episode_len_mean"
AGENTS = "agent_episode_returns_mean"
CUSTOM = "custom_metrics"


@dataclass(frozen=True)
class Table:
    """Rows under a head."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    numbers_from: int | None = None  # the column from which on all are numbers, which stand at the right; None: none

    def columns(self, names: Container[str]) -> Table:
        """Return it with these columns alone."""
        kept = [place for place, name in enumerate(self.head) if name in names]
        return replace(self, head=[self.head[at] for at in kept], rows=[[row[at] for at in kept] for row in self.rows])

    @property
    def width(self) -> int:
        """The characters of a line if no cell is folded."""
        return sum(_GAP + max(map(len, column)) for column in zip(self.head, *self.rows, strict=True))

    def print(self, console: Console, whole: Container[int] = ()) -> None:
        """Print it. Where there is no room, cells are folded; in the columns `whole`, only intervals and heads are."""
        if self.title:
            console.print(self.title, style="italic", soft_wrap=True)
        is_narrow = self.width > console.width
        printed = rich.Table(box=None, pad_edge=False, header_style="bold")
        for place, name in enumerate(self.head):
            side: Any = "left" if self.numbers_from is None or place < self.numbers_from else "right"
            label = fill(name, max(map(len, name.split()), default=1)) if is_narrow and place in whole else name
            printed.add_column(label, justify=side, overflow="fold", no_wrap=place in whole)
        to = "\nto " if is_narrow else " to "
        for row in self.rows:
            printed.add_row(*(cell.replace(" to ", to) if at in whole else cell for at, cell in enumerate(row)))
        console.print(printed)

    def html(self) -> Html:
        """Return it as part of a page, without its title."""
        return page.table(self.rows, self.head)

    def markdown(self) -> str:
        """Return it in Markdown, without its title."""
        n, of_text = len(self.head), self.numbers_from
        rule = ["---"] * n if of_text is None else ["---"] * of_text + ["--:"] * (n - of_text)
        rows = [[*map(markdown_text, row)] for row in self.rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in [self.head, rule, *rows])


def returns_table(result: Result, evaluation: Result, width: int, most_agents: int | None = MOST_AGENTS) -> rich.Table:
    """Make a table of the mean returns and custom metrics over the latest episodes.

    Args:
        evaluation: the result of the latest evaluated iteration, shown in a second column; empty if there is none.
        most_agents: how many agents are shown; None: all.
    """
    training = result["env_runners"]
    return metrics_table(metric_rows(training, most_agents), training, evaluated(evaluation), width)


def metrics_table(
    rows: Sequence[MetricRow],
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    width: int,
    trend: Callable[[MetricRow, int], str] | None = None,
) -> rich.Table:
    """Make a table of at most `width` characters; labels are cut if it does not fit, numbers never.

    Args:
        evaluation: metrics of an evaluation, shown in a second column; empty if there was none.
        trend: draws a trend for a row in at most the given number of characters; None: no column for trends. The
            column is left out if there is no room for it.
    """
    columns = {"training": training, **({"evaluation": evaluation} if evaluation else {})}
    cells = [[row.value(metrics) for metrics in columns.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    left = width - sum(widths) - _GAP * len(widths)
    label_width = max(_SHORTEST_LABEL, min(left, max(len(row.label) for row in rows)))
    trend_width = left - label_width - _GAP
    if trend is None or trend_width < _SHORTEST_TREND:
        trend, trend_width = None, 0
    table = _table("", label_width, dict(zip(columns, widths, strict=True)))
    if trend is not None:
        table.add_column("trend", no_wrap=True)
    for row, values in zip(rows, cells, strict=True):
        last = [] if trend is None else [trend(row, trend_width)]
        table.add_row(Text(row.label), *values, *last, style="bold" if row.path == SUM_ROW.path else None)
    return table


def _table(label: str, label_width: int, widths: Mapping[str, int]) -> rich.Table:
    """Make a table with a column of labels, which may be cut, and columns of numbers of at least these widths."""
    table = rich.Table(box=None, header_style="dim", pad_edge=False, padding=(0, _GAP // 2))
    table.add_column(label, no_wrap=True, overflow="ellipsis", width=label_width)
    for name, width in widths.items():
        table.add_column(name, justify="right", no_wrap=True, min_width=width)
    return table


def evaluated(result: Result) -> Mapping[str, Any]:
    """Return the metrics of an iteration's evaluation; empty if there was none."""
    metrics = result.get("evaluation", {}).get("env_runners", {})
    return metrics if isinstance(metrics, Mapping) else {}


@dataclass(frozen=True)
class MetricRow:
    """A row of a table."""

    label: str  # the text in the first column
    path: tuple[str, ...]  # where the value is below `env_runners`; empty if the row is a remark without values
    digits: int = 2  # after the decimal point

    def number(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the value; None if there is none, as with a custom evaluation function."""
        value: Any = metrics if self.path else None
        for name in self.path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if isinstance(value, (int, float)) else None

    def value(self, metrics: Mapping[str, Any]) -> str:
        """Format the value; empty for a remark."""
        return number(self.number(metrics), self.digits) if self.path else ""


SUM_ROW = MetricRow("sum of returns", (SUM,))


def metric_rows(metrics: Mapping[str, Any], most_agents: int | None) -> list[MetricRow]:
    """Make the rows for these metrics, with at most `most_agents` agents."""
    custom = [name.removesuffix("_mean") for name in metrics[CUSTOM] if name.endswith("_mean")]
    return [
        SUM_ROW,
        *_agent_rows(metrics[AGENTS], most_agents),
        MetricRow("episode length", (LENGTH,), digits=1),
        *(MetricRow(name, (CUSTOM, f"{name}_mean")) for name in custom),
    ]


def fitting_rows(metrics: Mapping[str, Any], most_agents: int | None, height: int) -> list[MetricRow]:
    """Make at most `height` rows: agents are left out first, then custom metrics."""
    for most in (most_agents, 6, 4, 2, 0):
        rows = metric_rows(metrics, most if most_agents is None or most is None else min(most, most_agents))
        if len(rows) <= height:
            return rows
    return rows[: max(1, height)]


def _agent_rows(returns: Mapping[str, float | None], most: int | None) -> Iterator[MetricRow]:
    shown = shown_agents(returns, most)
    yield from (MetricRow(f"return of {agent}", (AGENTS, agent)) for agent in shown.first)
    if shown.others:
        yield MetricRow(f"{shown.others} other agents" if shown.first else f"{shown.others} agents", ())
    yield from (MetricRow(f"return of {agent}", (AGENTS, agent)) for agent in shown.last)


# --- Which agents are shown -------------------------------------------------------------------------------------------

Returns = Mapping[AgentID, float | None]


@dataclass(frozen=True)
class ShownAgents:
    """The agents to show, with their returns."""

    first: Returns  # the best agents, best first; or all agents in the env's order
    others: int  # the number of agents left out between `first` and `last`
    last: Returns  # the worst agents, worst last


def shown_agents(returns: Returns, most: int | None) -> ShownAgents:
    """Select all agents, or the best and the worst.

    Args:
        returns: the mean return of each agent; None before its first episode.
        most: the greatest number of agents to show; None: all.
    """
    if most is None or len(returns) <= most + 1:  # a line for one omitted agent saves no room
        return ShownAgents(returns, 0, {})
    ranked = sorted(returns.items(), key=lambda each: math.inf if each[1] is None else -each[1])
    best, worst = most - most // 2, most // 2
    return ShownAgents(dict(ranked[:best]), len(ranked) - most, dict(ranked[len(ranked) - worst :]))


# A label, and a value for each episode or seed; or their statistics.
Samples = Sequence[tuple[str, Sequence[float] | SampleStats]]

_FIGURES = ("mean", "SD", "min", "max", "95 % CI of the mean")
_LABEL_WIDTH = 24  # characters of a label that are kept while there are figures that can be left out instead


def samples_table(samples: Samples, width: int, bold: str, title: str = "per episode") -> rich.Table:
    """Make a table with a row for each sample: mean, standard deviation, extremes and confidence interval.

    Args:
        width: of the whole table, in characters. If it is too small, the last figures are left out, and labels are
            cut; numbers never are.
        title: of the column of labels.
    """
    rows = [(label, _figures(values)) for label, values in samples]
    widths = [max(map(len, column)) for column in zip(_FIGURES, *(figures for _, figures in rows), strict=True)]
    longest = max(len(label) for label, _ in rows)
    while len(widths) > 1 and sum(widths) + _GAP * len(widths) + min(longest, _LABEL_WIDTH) > width:
        widths.pop()
    left = width - sum(widths) - _GAP * len(widths)
    table = _table(title, max(1, min(longest, left)), dict(zip(_FIGURES, widths, strict=False)))
    for label, figures in rows:
        table.add_row(Text(label), *figures[: len(widths)], style="bold" if label == bold else None)
    return table


def _figures(values: Sequence[float] | SampleStats) -> list[str]:
    stats = values if isinstance(values, SampleStats) else sample_stats(values)
    return [*map(number, (stats.mean, stats.sd, stats.min, stats.max)), between(stats.ci95)]


class _Counts(ProgressColumn):
    """How much of a task is done, in its unit: `1,000 of 4,000 env steps`."""

    @override
    def render(self, task: Task) -> Text:
        total = "?" if task.total is None else f"{task.total:,.0f}"
        return Text(f"{task.completed:,.0f} of {total} {task.fields.get('unit', '')}".rstrip())


def progress_bars() -> Progress:
    """Make bars on standard error that disappear when they are left; none if it is not a terminal.

    A task has its unit as field `unit`, unless its description says it.
    """
    console = standard_console(stderr=True)
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(bar_width=None), _Counts(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal, expand=True)
