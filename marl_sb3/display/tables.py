"""Tables of returns: the sum first, then the agents, then what else is known of the episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from marl_sb3.display.agents import shown_agents
from marl_sb3.display.text import number
from marl_sb3.metrics import Result

MOST_AGENTS = 8  # in a table; more are the best and the worst of them
_GAP = 2  # characters between columns
_SHORTEST_LABEL = 8
_SHORTEST_TREND, _LONGEST_TREND = 6, 32

SUM = "episode_return_mean"
LENGTH = "episode_len_mean"
AGENTS = "agent_episode_returns_mean"
CUSTOM = "custom_metrics"


def returns_table(result: Result, evaluation: Result, width: int, most_agents: int | None = MOST_AGENTS) -> Table:
    """Mean returns of all agents together and of each, and the custom metrics, over the latest episodes.

    Args:
        result: of an iteration.
        evaluation: of the latest iteration that was evaluated, which has a column of its own; empty if none was.
        width: columns of the terminal.
        most_agents: how many agents are shown; None: all.
    """
    columns = {"training": result["env_runners"]}
    if metrics := evaluated(evaluation):
        columns["evaluation"] = metrics
    return metrics_table(metric_rows(result["env_runners"], most_agents), columns, width)


def metrics_table(
    rows: Sequence[MetricRow],
    columns: Mapping[str, Mapping[str, Any]],
    width: int,
    trend: Callable[[MetricRow, int], str] | None = None,
) -> Table:
    """A table that cuts labels rather than numbers where it does not fit.

    Args:
        rows: what is shown.
        columns: metrics by the name of their column.
        width: of the whole table, in characters.
        trend: gives a text of at most so many characters for a row: the last column, where there is room for it.
    """
    cells = [[row.value(metrics) for metrics in columns.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    room = width - sum(widths) - _GAP * len(widths)
    label_width = max(_SHORTEST_LABEL, min(room, max(len(row.label) for row in rows)))
    trend_width = min(_LONGEST_TREND, room - label_width - _GAP)
    if trend is None or trend_width < _SHORTEST_TREND:
        trend, trend_width = None, 0
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, _GAP // 2))
    table.add_column("", no_wrap=True, overflow="ellipsis", width=label_width)
    for name, column_width in zip(columns, widths, strict=True):
        table.add_column(name, justify="right", no_wrap=True, min_width=column_width)
    if trend is not None:
        table.add_column("trend", no_wrap=True)
    for row, values in zip(rows, cells, strict=True):
        last = [] if trend is None else [trend(row, trend_width)]
        table.add_row(Text(row.label), *values, *last, style="bold" if row.path == SUM_ROW.path else None)
    return table


def evaluated(result: Result) -> Mapping[str, Any]:
    """The metrics of the iteration's evaluation; empty if it was not evaluated."""
    metrics = result.get("evaluation", {}).get("env_runners", {})
    return metrics if isinstance(metrics, Mapping) else {}


class MetricRow:
    """A row of a table: what it is called, and where its value is.

    Args:
        label: for a person.
        path: of the value below `env_runners`; empty where the row is a remark.
        digits: after the decimal point.
    """

    def __init__(self, label: str, path: tuple[str, ...], digits: int = 2) -> None:
        self.label = label
        self.path = path
        self._digits = digits

    def number(self, metrics: Mapping[str, Any]) -> float | None:
        """The value; None where there is none, as in what a function of one's own has evaluated."""
        value: Any = metrics if self.path else None
        for name in self.path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if isinstance(value, (int, float)) else None

    def value(self, metrics: Mapping[str, Any]) -> str:
        """The value in words; empty for a remark."""
        return number(self.number(metrics), self._digits) if self.path else ""


SUM_ROW = MetricRow("sum of returns", (SUM,))


def metric_rows(metrics: Mapping[str, Any], most_agents: int | None) -> list[MetricRow]:
    """The rows of a table of these metrics."""
    custom = [name.removesuffix("_mean") for name in metrics[CUSTOM] if name.endswith("_mean")]
    return [
        SUM_ROW,
        *_agent_rows(metrics[AGENTS], most_agents),
        MetricRow("episode length", (LENGTH,), digits=1),
        *(MetricRow(name, (CUSTOM, f"{name}_mean")) for name in custom),
    ]


def fitting_rows(metrics: Mapping[str, Any], most_agents: int | None, height: int) -> list[MetricRow]:
    """The rows of a table of at most so many lines: it leaves out agents, then custom metrics."""
    for most in (most_agents, 6, 4, 2, 0):
        rows = metric_rows(metrics, most if most_agents is None or most is None else min(most, most_agents))
        if len(rows) <= height:
            return rows
    return rows[: max(1, height)]


def _agent_rows(returns: Mapping[str, float | None], most: int | None) -> Iterator[MetricRow]:
    shown = shown_agents(returns, most)
    for agent in shown.first:
        yield MetricRow(f"return of {agent}", (AGENTS, agent))
    if shown.others:
        yield MetricRow(f"{shown.others} other agents" if shown.first else f"{shown.others} agents", ())
    for agent in shown.last:
        yield MetricRow(f"return of {agent}", (AGENTS, agent))
