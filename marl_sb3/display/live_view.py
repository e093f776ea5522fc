"""A live view of a training, redrawn while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marl_sb3.display.plain_lines import PlainLines
from marl_sb3.display.progress import Pace, Series, progress_parts, speed_parts
from marl_sb3.display.screen import Room, screen_for
from marl_sb3.display.tables import SUM_ROW, MetricRow, evaluated, fitting_rows, metric_rows, metrics_table
from marl_sb3.display.text import number, packed, sparkline
from marl_sb3.display.training import Goals, TrainingView, first_values, metric_value, no_episode_yet
from marl_sb3.metrics import Result

_MOST_STOPS = 3  # stop conditions that are shown


class LiveView:
    """A progress bar, times and speed; below it returns with their trends, and the goals.

    Args:
        keep: leave the last picture on the screen when the training ends.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        goals: Goals,
        *,
        keep: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._title = title
        self._goals = goals
        self._lock = threading.Lock()  # the screen may call draw() in another thread
        self._pace = Pace(clock)
        self._done, self._total = 0, 0
        self._result: Result | None = None
        self._trends: dict[tuple[str, ...], Series] = {}
        self._best = Series(goals.higher_is_better)
        self._evaluation: tuple[int, Mapping[str, Any]] | None = None  # iteration and metrics
        self._evaluations = Series()
        self._screen = screen_for(console, self.draw, keep=keep)
        self.is_possible = self._screen is not None

    def begin(self, done: int, total: int) -> None:
        """See `TrainingView`."""
        self._pace.begin(done)
        self._done, self._total = done, total
        if self._screen is not None:
            self._screen.open()

    def advance(self, done: int) -> None:
        """See `TrainingView`."""
        self._done = done
        if self._screen is not None:
            self._screen.refresh()

    def add(self, result: Result) -> None:
        """See `TrainingView`."""
        with self._lock:
            self._take(result)
        self.advance(result["num_env_steps_sampled_lifetime"])

    def close(self) -> None:
        """See `TrainingView`."""
        if self._screen is not None:
            self._screen.close()

    def _take(self, result: Result) -> None:
        iteration = result["iteration"]
        self._pace.add(result["num_env_steps_sampled_lifetime"])
        self._result = result
        for row in metric_rows(result["env_runners"], None):
            self._trends.setdefault(row.path, Series()).add(row.number(result["env_runners"]), iteration)
        self._best.add(metric_value(result, self._goals.metric), iteration)
        if metrics := evaluated(result):
            self._evaluation = (iteration, metrics)
            self._evaluations.add(SUM_ROW.number(metrics), iteration)

    # --- Drawing ---

    def draw(self, room: Room) -> RenderableType:
        """Draw the present state; it fits into any room of at least 10 lines."""
        with self._lock:
            head = self._head(room)
            if self._result is None:
                return Group(*head)
            goals = self._goal_lines(self._result)
            table = self._table(self._result, room, room.height - len(head) - len(goals))
            return Group(*head, table, *(Text(line, no_wrap=True, overflow="ellipsis") for line in goals))

    def _head(self, room: Room) -> list[RenderableType]:
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(max_width=room.width // 2, no_wrap=True, overflow="ellipsis")
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True, justify="right")
        share = min(1.0, self._done / self._total) if self._total else 0.0
        drawn = ProgressBar(total=1.0, completed=share)
        bar.add_row(Text(self._title, style="bold"), drawn, f"{share:.0%}")
        steps = progress_parts(self._pace, self._done, self._total)
        speed = speed_parts(self._pace, self._result)
        lines = [*packed(steps, room.width), *packed(speed, room.width)]
        return [bar, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines)]

    def _goal_lines(self, result: Result) -> list[str]:
        """The state of each goal. Numbers come before names: the end of a line may be cut."""
        words = no_episode_yet(result, self._goals.longest_episode())
        lines = [] if words is None else [words]
        if self._best.best is not None:
            lines.append(f"best {_best(self._best)}, by {self._goals.metric}")
        if self._evaluation is not None:
            lines.append(self._evaluation_line(*self._evaluation))
        for name, limit in list(self._goals.stop.items())[:_MOST_STOPS]:
            lines.append(f"stop at {limit:g}, now {number(metric_value(result, name))}: {name}")
        if (saved := self._goals.checkpoint()) is not None:
            lines.append(f"saved {saved}")
        return lines

    def _evaluation_line(self, iteration: int, metrics: Mapping[str, Any]) -> str:
        if self._evaluations.best is None:  # a custom evaluation function
            return f"evaluated in iteration {iteration}: {first_values(metrics)}"
        return f"evaluated in iteration {iteration}, best {_best(self._evaluations)}"

    def _table(self, result: Result, room: Room, height: int) -> Table:
        columns = {"training": result["env_runners"]}
        if self._evaluation is not None:
            columns["evaluation"] = self._evaluation[1]
        rows = fitting_rows(result["env_runners"], self._goals.most_agents, height - 1)
        return metrics_table(rows, columns, room.width, lambda row, width: self._trend(row, width, room))

    def _trend(self, row: MetricRow, width: int, room: Room) -> str:
        series = self._trends.get(row.path)
        return "" if series is None else sparkline(series.trend(width), ascii_only=room.ascii_only)


def _best(series: Series) -> str:
    return f"{number(series.best)} in iteration {series.best_iteration}"


def training_view(console: Console, title: str, goals: Goals, *, keep: bool = False) -> TrainingView:
    """Make a live view if the console supports one, otherwise plain lines.

    Args:
        keep: leave the last picture on the screen when the training ends.
    """
    live = LiveView(console, title, goals, keep=keep)
    return live if live.is_possible else PlainLines(console, goals)
