"""A training as lines of text, for output that is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from marl_sb3.display.progress import Pace, Series, progress_parts
from marl_sb3.display.tables import AGENTS, SUM, SUM_ROW, evaluated, shown_agents
from marl_sb3.display.text import number
from marl_sb3.display.training import Goals, first_values, no_episode_yet
from marl_sb3.metrics import Result

_LINE_S = 1.0  # least time between lines
_LINE_SHARE = 1 / 200  # of the elapsed time; a log of a day has some 1,400 lines
_SILENT_S = 30.0  # without a finished iteration: then a line with the steps is printed
_MOST_AGENTS = 4  # in a line


class PlainLines:
    """Print the progress at most once a second and at the end, and evaluations on lines of their own.

    The longer the training takes, the fewer lines are printed. If an iteration takes long, its steps are.

    Args:
        goals: of the training; of these, the number of agents and the longest episode are used.
    """

    def __init__(self, console: Console, goals: Goals, clock: Callable[[], float] = time.perf_counter) -> None:
        self._console = console
        most = goals.most_agents
        self._most_agents = None if most is None else min(most, _MOST_AGENTS)
        self._longest_episode = goals.longest_episode
        self._clock = clock
        self._pace = Pace(clock)
        self._next_line_s = 0.0
        self._total = 0
        self._unprinted: Result | None = None
        self._unprinted_evaluation: Result | None = None
        self._evaluations = Series()

    def begin(self, done: int, total: int) -> None:
        """See `TrainingView`."""
        self._pace.begin(done)
        self._total = total
        self._next_line_s = max(self._next_line_s, self._clock())

    def advance(self, done: int) -> None:
        """See `TrainingView`."""
        if self._clock() >= self._next_line_s + _SILENT_S:
            self._show([", ".join(progress_parts(self._pace, done, self._total))])

    def add(self, result: Result) -> None:
        """See `TrainingView`."""
        self._pace.add(result["num_env_steps_sampled_lifetime"])
        self._unprinted = result
        if metrics := evaluated(result):
            self._unprinted_evaluation = result
            self._evaluations.add(SUM_ROW.number(metrics), result["iteration"])
        if self._clock() >= self._next_line_s:
            self._print()

    def close(self) -> None:
        """Print the latest result if it has not been printed."""
        self._print()

    def _print(self) -> None:
        if self._unprinted is None:
            return
        no_returns = no_episode_yet(self._unprinted, self._longest_episode())
        lines = [plain_line(self._unprinted, self._total, self._pace, self._most_agents, no_returns)]
        if self._unprinted_evaluation is not None:
            lines.append(evaluation_line(self._unprinted_evaluation, self._evaluations, self._most_agents))
        self._unprinted = self._unprinted_evaluation = None
        self._show(lines)

    def _show(self, lines: list[str]) -> None:
        self._next_line_s = self._clock() + max(_LINE_S, _LINE_SHARE * self._pace.elapsed_s())
        for line in lines:
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)


def plain_line(
    result: Result, total_timesteps: int, pace: Pace, most_agents: int | None, no_returns: str | None = None
) -> str:
    """Progress, returns or why there are none, speed and remaining time on one line."""
    env_runners = result["env_runners"]
    steps, elapsed, left = progress_parts(pace, result["num_env_steps_sampled_lifetime"], total_timesteps)
    returns = no_returns or _returns(env_runners, most_agents)
    return (
        f"iteration {result['iteration']}: {steps}, {returns}, {number(pace.rate(), 0)} env steps/s, {elapsed}, {left}"
    )


def evaluation_line(result: Result, evaluations: Series, most_agents: int | None) -> str:
    """The returns of an evaluation and the best return so far, on one line."""
    metrics = evaluated(result)
    where = f"evaluation of iteration {result['iteration']}"
    if SUM not in metrics:  # a custom evaluation function
        return f"{where}: {first_values(metrics)}"
    best = ""
    if evaluations.best is not None:
        best = f", best {number(evaluations.best)} in iteration {evaluations.best_iteration}"
    return f"{where}: {_returns(metrics, most_agents)}{best}"


def _returns(metrics: Mapping[str, Any], most_agents: int | None) -> str:
    shown = shown_agents(metrics.get(AGENTS, {}), most_agents)
    first, last = (_named(agents) for agents in (shown.first, shown.last))
    agents = f"best {first}; worst {last}; {shown.others} others" if shown.others else first
    return f"return {number(metrics.get(SUM))}" + (f" ({agents})" if agents else "")


def _named(returns: Mapping[str, float | None]) -> str:
    return ", ".join(f"{agent} {number(value)}" for agent, value in returns.items())
