"""Views of a training run: a live view that is redrawn, or lines of text where there is no terminal."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marl_sb3.core.config.values import counted
from marl_sb3.core.metrics.names import Result, flatten
from marl_sb3.extensions.display.screen import ScreenSize, cut_line, screen_for, standard_console
from marl_sb3.extensions.display.tables import (
    AGENTS,
    MOST_AGENTS,
    SUM,
    SUM_ROW,
    MetricRow,
    evaluated,
    fitting_rows,
    metric_rows,
    metrics_table,
    shown_agents,
)
from marl_sb3.extensions.display.text import duration, number, packed, short, sparkline
from marl_sb3.startup import COMPILING_S

_WINDOW_S = 30.0  # the rate is measured over the latest half minute,
_WINDOW_SAMPLES = 10  # or over this many iterations where they take longer
_SAMPLE_S = 0.1  # least time between samples: an iteration may take less than a millisecond
_MAX_POINTS = 512  # of a series; at this number, neighbours are merged in pairs
_LINE_S = 1.0  # least time between plain lines
_LINE_SHARE = 1 / 200  # of the elapsed time; a log of a day has some 1,400 lines
_SILENT_S = 30.0  # without a finished iteration: then a line with the steps is printed
_MOST_AGENTS_IN_LINE = 4
_MOST_STOPS = 3  # stop conditions that are shown in the live view


# --- Progress ---------------------------------------------------------------------------------------------------------


class ProgressClock:
    """Measures elapsed time, rate and remaining time of a training run or search.

    The rate is steps per second of wall-clock time, including evaluations and checkpoints, but not the time in which
    the process waited for a compiler.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started_s: float | None = None
        self._samples: deque[tuple[float, int]] = deque()  # time and steps done

    def begin(self, done: int) -> None:
        """Start at `done` steps, or restart there after a rollback."""
        now_s = self._working_s()
        if self._started_s is None:
            self._started_s = self._clock()
        self._samples = deque([(now_s, done)])
        self._latest = (now_s, done)

    def add(self, done: int) -> None:
        """Record the number of steps done at the end of an iteration."""
        self._latest = (self._working_s(), done)
        if self._latest[0] - self._samples[-1][0] >= _SAMPLE_S:
            self._samples.append(self._latest)
            while len(self._samples) > _WINDOW_SAMPLES and self._latest[0] - self._samples[1][0] >= _WINDOW_S:
                self._samples.popleft()

    def _working_s(self) -> float:
        return self._clock() - COMPILING_S[0]

    def elapsed_s(self) -> float:
        """Return the seconds since the first `begin`."""
        return 0.0 if self._started_s is None else self._clock() - self._started_s

    def rate(self) -> float | None:
        """Return the steps per second; None before the end of the first iteration."""
        if not self._samples:
            return None
        (first_s, first), (last_s, last) = self._samples[0], self._latest
        return (last - first) / (last_s - first_s) if last_s > first_s and last > first else None

    def left_s(self, done: int, total: float) -> float | None:
        """Return the seconds from `done` to `total` steps at the present rate; None before the first iteration ends."""
        rate = self.rate()
        return None if rate is None else max(0, total - done) / rate


class Series:
    """A metric over a training run in bounded memory: means over equal spans of iterations, and the best value."""

    def __init__(self, higher_is_better: bool = True) -> None:
        self._sign = 1.0 if higher_is_better else -1.0
        self._means: list[float] = []
        self._span = 1  # values in each mean
        self._pending: list[float] = []
        self.best: float | None = None  # value; None before the first
        self.best_iteration: int | None = None

    def add(self, value: float | None, iteration: int) -> None:
        """Add the value of an iteration; None is ignored."""
        if value is None:
            return
        if self.best is None or self._sign * value > self._sign * self.best:
            self.best, self.best_iteration = value, iteration
        self._pending.append(value)
        if len(self._pending) == self._span:
            self._means.append(_mean(self._pending))
            self._pending = []
        if len(self._means) == _MAX_POINTS:
            self._means = [_mean(self._means[i : i + 2]) for i in range(0, _MAX_POINTS, 2)]
            self._span *= 2

    def trend(self, points: int) -> list[float]:
        """Return `points` means over spans of about the same length, fewer at the start of the run."""
        n = len(self._means) if points > 0 else 0
        ends = [n * i // points for i in range(points + 1)] if n > points else range(n + 1)
        return [_mean(self._means[start:end]) for start, end in pairwise(ends)]


def _mean(values: list[float]) -> float:
    """Return the mean, computed so that equal values give exactly that value: a constant shows no trend."""
    first = values[0]
    return first + sum(value / len(values) - first / len(values) for value in values)


def progress_parts(clock: ProgressClock, done: int, total: int) -> list[str]:
    """Format steps done, elapsed time and remaining time."""
    more = " (updates are complete)" if done > total else ""
    left_s = clock.left_s(done, total)
    left = [] if left_s is None else [f"{duration(left_s)} left"]
    return [f"{done:,} of {total:,} env steps{more}", f"{duration(clock.elapsed_s())} elapsed", *left]


def speed_parts(clock: ProgressClock, result: Result | None) -> list[str]:
    """Format iteration, speed, and the shares of rollout and update in the time."""
    if result is None:
        return ["iteration 1"]
    timers, throughput, rate = result["timers"], result["throughput"], clock.rate()
    rollout_s, update_s = timers["env_runner_sampling_timer"], timers["learner_update_timer"]
    total_s = (rollout_s + update_s) or 1.0
    env_rate, agent_rate = throughput["env_steps_per_s"], throughput["agent_steps_per_s"]
    health = result.get("fault_tolerance") or {}  # of the processes that step the envs, if there are any
    restarts = health.get("num_worker_restarts")
    agents_rate = rate * agent_rate / env_rate if rate and env_rate and agent_rate else None
    return [
        f"iteration {result['iteration']}",
        f"{number(rate, 0)} env steps/s",
        f"{number(agents_rate, 0)} agent steps/s",
        f"rollout {rollout_s / total_s:.0%}",
        f"update {update_s / total_s:.0%}",
        *([counted(health["num_healthy_workers"], "worker")] if health else []),
        *([counted(restarts, "worker restart")] if restarts else []),
    ]


# --- A training run ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goals:
    """The goals of a training run, as views show them."""

    metric: str = f"env_runners/{SUM}"  # flat name of the metric that selects the best checkpoint
    higher_is_better: bool = True  # whether the highest value of that metric is the best
    stop: Mapping[str, float] = field(default_factory=dict)  # the value of each metric at which the run stops
    # Returns the name of the latest checkpoint; None before the first.
    checkpoint: Callable[[], str | None] = lambda: None
    most_agents: int | None = MOST_AGENTS  # show at most this many agents, fewer if there is no room; None: all
    # Returns the env steps of the longest episode that has not ended, as far as it is known.
    longest_episode: Callable[[], int] = lambda: 0


class TrainingView(ABC):
    """A view of a training run; all steps are env steps, and `clock` returns seconds."""

    def __init__(self, goals: Goals, clock: Callable[[], float]) -> None:
        self._goals = goals
        self._clock = ProgressClock(clock)
        self._total = 0
        self._evaluations = Series()

    def begin(self, done: int, total: int) -> None:
        """Start at `done` of `total` steps, or continue there after a rollback."""
        self._clock.begin(done)
        self._total = total

    @abstractmethod
    def advance(self, done: int) -> None:
        """Note that all envs have taken a step. This is called in the hot loop and must be quick."""

    def add(self, result: Result) -> None:
        """Show the result of an iteration."""
        self._clock.add(result["num_env_steps_sampled_lifetime"])
        if metrics := evaluated(result):
            self._evaluations.add(SUM_ROW.number(metrics), result["iteration"])

    @abstractmethod
    def close(self) -> None:
        """Close the view; a second call has no effect."""


def _metric_value(result: Mapping[str, Any], name: str) -> float | None:
    """Look a number up by its flat name; None if there is none."""
    value: Any = result
    for key in name.split("/"):
        if not isinstance(value, Mapping) or key not in value:
            value = flatten(result).get(name)  # an agent or policy id may contain a slash
            break
        value = value[key]
    return value if isinstance(value, (int, float)) else None


def no_episode_yet(result: Result, longest: int) -> str | None:
    """Return words for a training run in which no episode has ended, so that it has no returns; None if one has.

    Args:
        longest: env steps of the longest episode so far; 0: not known.
    """
    if result["env_runners"][SUM] is not None:
        return None
    runs_for = f"; the longest runs for {counted(longest, 'env step')}" if longest else ""
    return f"no episode has ended yet{runs_for}"


def _first_values(metrics: Mapping[str, Any]) -> str:
    """Format the first metrics of a custom evaluation function, with their names."""
    return ", ".join(f"{name} {short(value)}" for name, value in list(flatten(metrics).items())[:4])


# --- Plain lines ------------------------------------------------------------------------------------------------------


class PlainLines(TrainingView):
    """Print the progress at most once a second and at the end, and evaluations on lines of their own.

    The longer the run takes, the fewer lines are printed. If an iteration takes long, its steps are. Of the goals, the
    number of agents and the longest episode are used.
    """

    def __init__(self, console: Console, goals: Goals, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(goals, clock)
        self._console, self._now = console, clock
        most = goals.most_agents
        self._most_agents = None if most is None else min(most, _MOST_AGENTS_IN_LINE)
        self._next_line_s = 0.0
        self._unprinted: Result | None = None
        self._unprinted_evaluation: Result | None = None

    def begin(self, done: int, total: int) -> None:
        """Start at `done` of `total` steps, or continue there after a rollback."""
        super().begin(done, total)
        self._next_line_s = max(self._next_line_s, self._now())

    def advance(self, done: int) -> None:
        """Print the steps if nothing has been printed for long."""
        if self._now() >= self._next_line_s + _SILENT_S:
            self._show([", ".join(progress_parts(self._clock, done, self._total))])

    def add(self, result: Result) -> None:
        """Print the result of an iteration, if a line is due."""
        super().add(result)
        self._unprinted = result
        if evaluated(result):
            self._unprinted_evaluation = result
        if self._now() >= self._next_line_s:
            self._print()

    def close(self) -> None:
        """Print the latest result if it has not been printed."""
        self._print()

    def _print(self) -> None:
        if self._unprinted is None:
            return
        lines = [self._line(self._unprinted)]
        if self._unprinted_evaluation is not None:
            lines.append(self._evaluation_line(self._unprinted_evaluation))
        self._unprinted = self._unprinted_evaluation = None
        self._show(lines)

    def _show(self, lines: list[str]) -> None:
        self._next_line_s = self._now() + max(_LINE_S, _LINE_SHARE * self._clock.elapsed_s())
        for line in lines:
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _line(self, result: Result) -> str:
        """Return progress, returns or why there are none, speed and remaining time on one line."""
        steps, *times = progress_parts(self._clock, result["num_env_steps_sampled_lifetime"], self._total)
        returns = no_episode_yet(result, self._goals.longest_episode()) or self._returns(result["env_runners"])
        rate, metric = f"{number(self._clock.rate(), 0)} env steps/s", self._goals.metric
        if metric.rpartition("/")[2] != SUM:
            returns = f"{returns}, {metric} {number(_metric_value(result, metric))}"
        return f"iteration {result['iteration']}: {', '.join([steps, returns, rate, *times])}"

    def _evaluation_line(self, result: Result) -> str:
        """Return the returns of an evaluation and the best return so far, on one line."""
        metrics = evaluated(result)
        where = f"evaluation of iteration {result['iteration']}"
        if SUM not in metrics:  # a custom evaluation function
            return f"{where}: {_first_values(metrics)}"
        best = "" if self._evaluations.best is None else f", best {_best(self._evaluations)}"
        return f"{where}: {self._returns(metrics)}{best}"

    def _returns(self, metrics: Mapping[str, Any]) -> str:
        shown = shown_agents(metrics.get(AGENTS, {}), self._most_agents)
        first, last = (
            ", ".join(f"{agent} {number(value)}" for agent, value in returns.items())
            for returns in (shown.first, shown.last)
        )
        agents = f"best {first}; worst {last}; {shown.others} others" if shown.others else first
        return f"return {number(metrics.get(SUM))}" + (f" ({agents})" if agents else "")


# --- Live view --------------------------------------------------------------------------------------------------------


class LiveView(TrainingView):
    """A progress bar, times and speed; below it returns with their trends, and the goals.

    Args:
        keep: leave the last picture on the screen when the run ends.
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
        super().__init__(goals, clock)
        self._title = title
        self._lock = threading.Lock()  # the screen may call draw() in another thread
        self._done = 0
        self._result: Result | None = None
        self._trends: dict[tuple[str, ...], Series] = {}
        self._best = Series(goals.higher_is_better)
        self._evaluation: tuple[int, Mapping[str, Any]] | None = None  # iteration and metrics
        self._screen = screen_for(console, self.draw, keep=keep)
        self.is_possible = self._screen.is_live  # whether the console can show it

    def begin(self, done: int, total: int) -> None:
        """Start at `done` of `total` steps, or continue there after a rollback."""
        super().begin(done, total)
        self._done = done
        self._screen.open()

    def advance(self, done: int) -> None:
        """Show the steps at the next redraw."""
        self._done = done
        self._screen.refresh()

    def add(self, result: Result) -> None:
        """Show the result of an iteration at the next redraw."""
        iteration = result["iteration"]
        with self._lock:
            super().add(result)
            self._result = result
            for row in metric_rows(result["env_runners"], None):
                self._trends.setdefault(row.path, Series()).add(row.number(result["env_runners"]), iteration)
            self._best.add(_metric_value(result, self._goals.metric), iteration)
            if metrics := evaluated(result):
                self._evaluation = (iteration, metrics)
        self.advance(result["num_env_steps_sampled_lifetime"])

    def close(self) -> None:
        """Draw the last picture and release the screen."""
        self._screen.close()

    def draw(self, size: ScreenSize) -> RenderableType:
        """Draw the present state; it fits into any screen of at least 10 lines."""
        with self._lock:
            head = self._head(size)
            if self._result is None:
                return Group(*head)
            goals = self._goal_lines(self._result)
            table = self._table(self._result, size, size.height - len(head) - len(goals))
            return Group(*head, table, *map(cut_line, goals))

    def _head(self, size: ScreenSize) -> list[RenderableType]:
        bar = Table.grid(expand=True, padding=(0, 1))
        bar.add_column(max_width=size.width // 2, no_wrap=True, overflow="ellipsis")
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True, justify="right")
        share = min(1.0, self._done / self._total) if self._total else 0.0
        bar.add_row(Text(self._title, style="bold"), ProgressBar(total=1.0, completed=share), f"{share:.0%}")
        parts = progress_parts(self._clock, self._done, self._total), speed_parts(self._clock, self._result)
        return [bar, *map(cut_line, (line for each in parts for line in packed(each, size.width)))]

    def _goal_lines(self, result: Result) -> list[str]:
        """Describe the state of each goal. Numbers come before names: the end of a line may be cut."""
        lines = [words] if (words := no_episode_yet(result, self._goals.longest_episode())) else []
        if self._best.best is not None:
            lines.append(f"best {_best(self._best)}, by {self._goals.metric}")
        if self._evaluation is not None:
            iteration, metrics = self._evaluation
            is_custom = self._evaluations.best is None  # a custom evaluation function
            words = f": {_first_values(metrics)}" if is_custom else f", best {_best(self._evaluations)}"
            lines.append(f"evaluated in iteration {iteration}{words}")
        for name, limit in list(self._goals.stop.items())[:_MOST_STOPS]:
            lines.append(f"stop at {limit:g}, now {number(_metric_value(result, name))}: {name}")
        if (saved := self._goals.checkpoint()) is not None:
            lines.append(f"saved {saved}")
        return lines

    def _table(self, result: Result, size: ScreenSize, height: int) -> Table:
        def trend(row: MetricRow, width: int) -> str:
            series = self._trends.get(row.path)
            return "" if series is None else sparkline(series.trend(width), ascii_only=size.ascii_only)

        training, evaluation = result["env_runners"], self._evaluation[1] if self._evaluation is not None else {}
        rows = fitting_rows(training, self._goals.most_agents, height - 1)
        return metrics_table(rows, training, evaluation, size.width, trend)


def _best(series: Series) -> str:
    return f"{number(series.best)} in iteration {series.best_iteration}"


def training_view(console: Console, title: str, goals: Goals, *, keep: bool = False) -> TrainingView:
    """Make a live view if the console supports one, otherwise plain lines.

    Args:
        keep: leave the last picture on the screen when the run ends.
    """
    live = LiveView(console, title, goals, keep=keep)
    return live if live.is_possible else PlainLines(console, goals)


def standard_view() -> TrainingView:
    """Make the view of `learn(progress_bar=True)`: on standard output; it keeps its last picture."""
    return training_view(standard_console(), "training", Goals(), keep=True)
