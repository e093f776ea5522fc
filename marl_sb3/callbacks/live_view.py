"""Show a training on a terminal while it runs, or as plain lines where there is no terminal."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from marl_sb3.learners.callback import MultiAgentCallback
from marl_sb3.metrics import Result

_REFRESH_S = 0.1  # between updates of the bar
_LINE_S = 1.0  # between plain lines


class _StepsColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.completed:,.0f} of {task.total or 0:,.0f} env steps")


class LiveView(MultiAgentCallback):
    """A progress bar with the remaining time, and below it speed, where the time goes, and each agent's returns.

    Args:
        console: where to draw; it must be a terminal.
        title: a line above the bar.
    """

    def __init__(self, console: Console, title: str) -> None:
        super().__init__()
        self._bar = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            _StepsColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self._title = title
        self._live = Live(console=console, refresh_per_second=4, transient=True)  # the summary follows
        self._next_update_s = 0.0
        self._task: TaskID | None = None

    def _on_training_start(self) -> None:
        if self._task is not None:  # the training has been rolled back and begins again
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(self._title, total=self.locals["total_timesteps"], completed=self.num_timesteps)
        self._live.update(self._bar)
        self._live.start()

    def _on_step(self) -> bool:
        now_s = time.perf_counter()
        if now_s >= self._next_update_s:
            self._next_update_s = now_s + _REFRESH_S
            self._advance()
        return True

    def _advance(self) -> None:
        assert self._task is not None, "the training has started"
        self._bar.update(self._task, completed=self.num_timesteps)

    def on_iteration_end(self, result: Result) -> bool:
        """Redraw with the new numbers."""
        self._advance()
        self._live.update(Group(self._bar, speed_line(result), returns_table(result)))
        return True

    def _on_training_end(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back, whatever ended the training."""
        self._live.stop()


class PlainLines(MultiAgentCallback):
    """A line of text at most once a second, and one at the end.

    Args:
        console: where to print.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._next_line_s = 0.0
        self._unprinted: Result | None = None

    def _on_training_start(self) -> None:
        self._total = self.locals["total_timesteps"]

    def on_iteration_end(self, result: Result) -> bool:
        """Print, unless it was done a moment ago."""
        self._unprinted = result
        if time.perf_counter() >= self._next_line_s:
            self._print()
        return True

    def _on_training_end(self) -> None:
        self.close()

    def close(self) -> None:
        """Print the last numbers, if they have not been."""
        self._print()

    def _print(self) -> None:
        if self._unprinted is not None:
            self._console.print(plain_line(self._unprinted, self._total), soft_wrap=True, markup=False, highlight=False)
            self._next_line_s = time.perf_counter() + _LINE_S
            self._unprinted = None


def plain_line(result: Result, total_timesteps: int) -> str:
    """Progress, returns, speed and remaining time of one iteration, in a line."""
    env_runners = result["env_runners"]
    agents = ", ".join(f"{agent} {number(value)}" for agent, value in env_runners["agent_episode_returns_mean"].items())
    steps = result["num_env_steps_sampled_lifetime"]
    rate = result["throughput"]["env_steps_per_s"]
    left_s = max(0.0, total_timesteps - steps) / rate if rate else None
    return (
        f"iteration {result['iteration']}: {steps:,} of {total_timesteps:,} env steps, "
        f"return {number(env_runners['episode_return_mean'])} ({agents}), "
        f"{number(rate, 0)} env steps/s, {duration(left_s)} left"
    )


def speed_line(result: Result) -> Text:
    """Speed, and how the time is shared between rollout and update."""
    timers, throughput = result["timers"], result["throughput"]
    rollout_s, update_s = timers["env_runner_sampling_timer"], timers["learner_update_timer"]
    total_s = (rollout_s + update_s) or 1.0
    return Text(
        f"iteration {result['iteration']}  "
        f"{number(throughput['env_steps_per_s'], 0)} env steps/s  "
        f"{number(throughput['agent_steps_per_s'], 0)} agent steps/s  "
        f"rollout {rollout_s / total_s:.0%}  update {update_s / total_s:.0%}"
    )


def returns_table(result: Result) -> Table:
    """Mean returns of each agent and of all together, and the custom metrics, over the latest episodes."""
    env_runners = result["env_runners"]
    table = Table("mean over the latest episodes", box=None, header_style="dim", pad_edge=False)
    table.add_column("value", justify="right")
    for agent, value in env_runners["agent_episode_returns_mean"].items():
        table.add_row(Text(f"return of {agent}"), number(value))
    table.add_row("sum of returns", number(env_runners["episode_return_mean"]), style="bold")
    table.add_row("episode length", number(env_runners["episode_len_mean"], 1))
    for name, value in env_runners["custom_metrics"].items():
        if name.endswith("_mean"):
            table.add_row(Text(name.removesuffix("_mean")), number(value))
    return table


def number(value: Any, digits: int = 2) -> str:
    """A number for people; a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds, as `0:01:23`."""
    if seconds is None:
        return "-"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}"
