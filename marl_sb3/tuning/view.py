"""Show a search on a terminal while it runs, and what came out."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marl_sb3.display.text import duration, number
from marl_sb3.tuning.confirm import confirmed
from marl_sb3.tuning.confirm_table import confirmed_table
from marl_sb3.tuning.report import trials_table, write_files
from marl_sb3.tuning.study import RETRY_OF, StudyOfTrials
from marl_sb3.tuning.trial_rows import error_text, see_traceback


class SearchView:
    """Trials running, the best so far, how many were given up, and how long it will take.

    Args:
        console: where to draw; without a terminal it prints a line for each trial that ends.
        study: what is searched.
    """

    def __init__(self, console: Console, study: StudyOfTrials) -> None:
        self._console = console
        self._total = study.search.trials
        self._done_before = study.n_done()
        self._printed = {trial.number for trial in study.trials if trial.state.is_finished()}
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
        for trial in study.trials:
            if trial.state.is_finished() and trial.number not in self._printed:
                self._printed.add(trial.number)
                self._console.print(trial_line(trial), soft_wrap=True, markup=False)

    def _picture(self, study: StudyOfTrials) -> RenderableType:
        trials = study.trials
        counts = Counter(trial.state for trial in trials)
        done = study.n_done()
        elapsed_s = time.perf_counter() - self._started_s
        here = done - self._done_before
        left_s = elapsed_s / here * max(0, self._total - done) if here else None
        line = Text.assemble(
            (f"{done} of {self._total} trials  ", "bold"),
            f"{counts[TrialState.PRUNED]} pruned, {counts[TrialState.FAIL]} failed, "
            f"{sum(RETRY_OF in trial.user_attrs for trial in trials)} tried again  "
            f"{duration(elapsed_s)} gone, {duration(left_s)} left",
        )
        running = [Text(f"running  {trial_line(trial)}") for trial in trials if trial.state == TrialState.RUNNING]
        best = study.completed()[:1]
        shown = [Text(f"best     {trial_line(trial)}", style="bold") for trial in best]
        bar = Table.grid(expand=True)  # a bar alone does not end its line
        bar.add_row(ProgressBar(total=self._total, completed=done))
        return Group(line, bar, *shown, *running)


def trial_line(trial: FrozenTrial) -> str:
    """A trial in a line."""
    parameters = ", ".join(f"{name}={_short(value)}" for name, value in trial.params.items())
    values = trial.intermediate_values
    latest = trial.value if trial.value is not None else (values[max(values)] if values else None)
    state = trial.state.name if trial.state.is_finished() else f"evaluation {len(values)}"
    error = error_text(trial)
    why = "" if error is None else f": {error}{see_traceback(trial)}"
    return f"trial {trial.number}: {state} {number(latest)} ({parameters}){why}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- Afterwards ------------------------------------------------------------------------------------------------------


class ConfirmView:
    """How many of the trainings with fresh seeds are done.

    Args:
        console: where to draw; without a terminal it prints a line whenever one more is done.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = -1
        self._bar = Progress(
            TextColumn("training the best trials and the preset again"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> ConfirmView:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, done: int, total: int) -> None:
        """Draw the present state."""
        self._bar.update(self._task, completed=done, total=total)
        if self._bar.disable and done > max(self._printed, 0):
            self._console.print(f"trained again with fresh seeds: {done} of {total}")
        self._printed = done


def print_outcome(console: Console, study: StudyOfTrials) -> None:
    """Write the files of the study, and print its tables."""
    console.print(trials_table(study.trials, study.search.mode, console.width))
    candidates = confirmed(study)
    if candidates:
        console.print()
        console.print(confirmed_table(candidates, study.search.mode))
    for path in write_files(study):
        console.print(str(path), soft_wrap=True, markup=False)
