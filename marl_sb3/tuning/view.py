"""Show a search on a terminal while it runs, and what came out."""

from __future__ import annotations

import time
from types import TracebackType

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marl_sb3.callbacks.live_view import duration, number
from marl_sb3.tuning.confirm import PRESET, Candidate, confirm
from marl_sb3.tuning.confirm_stats import compare
from marl_sb3.tuning.report import best_yml, trials_csv, trials_table
from marl_sb3.tuning.report_page import html_report
from marl_sb3.tuning.study import StudyOfTrials

_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING)


class SearchView:
    """Trials running, the best so far, how many were given up, and how long it will take.

    Args:
        console: where to draw; without a terminal it prints a line for each trial that ends.
        study: what is searched.
    """

    def __init__(self, console: Console, study: StudyOfTrials) -> None:
        self._console = console
        self._total = study.search.trials
        self._finished_before = sum(trial.state.is_finished() for trial in study.trials())
        self._printed = {trial.number for trial in study.trials() if trial.state.is_finished()}
        self._started_s = time.perf_counter()
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> SearchView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, study: StudyOfTrials) -> None:
        """Draw the present state."""
        if self._live is not None:
            self._live.update(self._picture(study))
            return
        for trial in study.trials():
            if trial.state.is_finished() and trial.number not in self._printed:
                self._printed.add(trial.number)
                self._console.print(trial_line(trial), soft_wrap=True, markup=False)

    def _picture(self, study: StudyOfTrials) -> RenderableType:
        trials = study.trials()
        counts = {state: sum(trial.state == state for trial in trials) for state in _STATES}
        done = sum(counts[state] for state in _STATES[:3])
        elapsed_s = time.perf_counter() - self._started_s
        here = done - self._finished_before
        left_s = elapsed_s / here * max(0, self._total - done) if here else None
        line = Text.assemble(
            (f"{done} of {self._total} trials  ", "bold"),
            f"{counts[TrialState.PRUNED]} pruned, {counts[TrialState.FAIL]} failed  "
            f"{duration(elapsed_s)} gone, {duration(left_s)} left",
        )
        running = [Text(f"running  {trial_line(trial)}") for trial in trials if trial.state == TrialState.RUNNING]
        best = study.completed()[:1]
        shown = [Text(f"best     {trial_line(trial)}", style="bold") for trial in best]
        return Group(line, ProgressBar(total=self._total, completed=done), *shown, *running)


def trial_line(trial: FrozenTrial) -> str:
    """A trial in a line."""
    parameters = ", ".join(f"{name}={_short(value)}" for name, value in trial.params.items())
    values = trial.intermediate_values
    latest = trial.value if trial.value is not None else (values[max(values)] if values else None)
    state = trial.state.name if trial.state.is_finished() else f"evaluation {len(values)}"
    return f"trial {trial.number}: {state} {number(latest)} ({parameters})"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- Afterwards ------------------------------------------------------------------------------------------------------


def print_outcome(console: Console, study: StudyOfTrials, best: int, seeds: int, workers: int) -> None:
    """Confirm the best trials if that is asked for, write the files of the study, and print its tables."""
    console.print(trials_table(study.trials(), study.search.mode))
    candidates = _confirm(console, study, best, seeds, workers) if seeds else []
    if len(candidates) > 1:
        console.print(confirmed_table(candidates, study.search.mode))
    files = [trials_csv(study), best_yml(study), _html(console, study)]
    for path in files:
        if path is not None:
            console.print(str(path), soft_wrap=True, markup=False)


def _html(console: Console, study: StudyOfTrials) -> object:
    from marl_sb3.errors import ConfigError

    try:
        return html_report(study)
    except ConfigError as error:  # plotly is an extra
        console.print(f"no report.html: {error}", soft_wrap=True, markup=False)
        return None


def _confirm(console: Console, study: StudyOfTrials, best: int, seeds: int, workers: int) -> list[Candidate]:
    with console.status("training the best trials and the preset again") as status:
        return confirm(
            study, best, seeds, workers, lambda done, total: status.update(f"confirming: {done} of {total} runs")
        )


def confirmed_table(candidates: list[Candidate], mode: str) -> Table:
    """Each candidate over its seeds, next to the preset."""
    table = Table("candidate", box=None, header_style="dim", pad_edge=False)
    for name in ("seeds", "mean", "95 % CI", "better than the preset in", "verdict"):
        table.add_column(name, justify="right")
    sign = 1.0 if mode == "max" else -1.0
    preset = [sign * value for value in next(c for c in candidates if c.name == PRESET).values]
    for candidate in candidates:
        stats = compare([sign * value for value in candidate.values], preset)
        low, high = sorted(sign * bound for bound in stats.winner_ci)
        own = [str(len(candidate.values)), number(sign * stats.winner_mean), f"{number(low)} to {number(high)}"]
        rest = ["", ""] if candidate.name == PRESET else [f"{stats.improvement:.0%} of pairs", stats.verdict()]
        table.add_row(candidate.name, *own, *rest)
    return table
