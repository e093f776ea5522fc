"""Show an evaluation: a table of the values of all episodes, and a progress bar while they are played."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from marl_sb3.display.text import number
from marl_sb3.metrics.sample_stats import sample_stats

Samples = Sequence[tuple[str, Sequence[float]]]  # a label, and a value for each episode or seed

_FIGURES = ("mean", "SD", "min", "max", "95 % CI of the mean")
_LABEL_WIDTH = 24  # characters of a label that are kept while there are figures that can be left out instead
_GAP = 2  # characters between columns


def samples_table(samples: Samples, width: int, bold: str, title: str = "per episode") -> Table:
    """A row for each sample: mean, standard deviation, extremes and confidence interval.

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
    room = width - sum(widths) - _GAP * len(widths)
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, _GAP // 2))
    table.add_column(title, no_wrap=True, overflow="ellipsis", width=max(1, min(longest, room)))
    for name, column_width in zip(_FIGURES, widths, strict=False):
        table.add_column(name, justify="right", no_wrap=True, min_width=column_width)
    for label, figures in rows:
        table.add_row(Text(label), *figures[: len(widths)], style="bold" if label == bold else None)
    return table


def _figures(values: Sequence[float]) -> list[str]:
    stats = sample_stats(values)
    interval = "-" if stats.ci95 is None else " to ".join(map(number, stats.ci95))
    return [*map(number, (stats.mean, stats.sd, stats.min, stats.max)), interval]


def progress_bars() -> Progress:
    """Bars on standard error that disappear when they are left; none if it is not a terminal."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
