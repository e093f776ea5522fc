"""A search on a terminal: its progress while it runs, and tables of its trials and confirmations at its end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from marl_sb3.display.screen import Guard, Screen, ScreenSize, cut_line, screen_for
from marl_sb3.display.text import duration, number, packed, short_path
from marl_sb3.display.training_view import ProgressClock
from marl_sb3.tuning import trial as key
from marl_sb3.tuning.confirmed import HEADER, confirmed, confirmed_rows
from marl_sb3.tuning.study import TuneStudy, best_first
from marl_sb3.tuning.trial import one_line, parameters_text, rounded, states, stored_text, trial_line, value_text

# --- Progress ---------------------------------------------------------------------------------------------------------


class SearchView:
    """The progress of trials, or of trainings with fresh seeds: a live view with a bar if the console supports it.

    Otherwise, a line is printed for each that has finished. A context manager. An error of the view is logged, and ends
    nothing but the view.

    Args:
        console: where to draw; None: nowhere.
        study: whose trials are shown; None: trainings with fresh seeds are.
        keep: leave the last picture on the screen.
    """

    def __init__(self, console: Console | None, study: TuneStudy | None = None, *, keep: bool = False) -> None:
        self._console = console
        self._search = None if study is None else study.search
        # Read from the storage before it is drawn in another thread.
        self._trials: Sequence[FrozenTrial] = () if study is None else study.trials
        self._done, self._total = (0, 0) if study is None else (study.n_done(), study.search.trials)
        self._clock = ProgressClock()
        self._clock.begin(self._done)
        make = Screen if console is None else partial(screen_for, console)
        self._screen = make(self.draw, keep=keep)
        self._show: Guard[None] = Guard(self._screen.close)

    def __enter__(self) -> Self:
        self._show(self._screen.open)
        return self

    def __exit__(self, *_: object) -> None:
        self._show(self._screen.close)

    def update(self, study: TuneStudy) -> None:
        """Show the present state of the trials; see `run_trials`."""
        if self._console is not None:
            self._show(self._update, study)

    def _update(self, study: TuneStudy) -> None:
        before = {trial.number for trial in self._trials if trial.state.is_finished()}
        self._trials = study.trials
        fresh = [trial for trial in self._trials if trial.state.is_finished() and trial.number not in before]
        self._advance(study.n_done(), map(trial_line, fresh))

    def update_confirmations(self, done: int, total: int) -> None:
        """Show how many trainings with fresh seeds are finished; see `confirm`."""
        if self._console is not None:
            self._show(self._update_confirmations, done, total)

    def _update_confirmations(self, done: int, total: int) -> None:
        if self._total == 0:  # trainings of an earlier search do not count for the pace
            self._clock.begin(done)
        self._total = total
        line = f"trained again with fresh seeds: {done} of {total}"
        self._advance(done, [line] if done > self._done else [])

    def _advance(self, done: int, lines: Iterable[str]) -> None:
        """Show that so much is done; without a live view, print the lines."""
        if done > self._done:
            self._clock.add(done)
        self._done = done
        self._screen.refresh()
        if self._console is not None and not self._screen.is_live:
            for line in lines:
                self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def draw(self, size: ScreenSize) -> RenderableType:
        """Draw the present state: what is done, times, the bar, the best trial, and the running trials that fit."""
        left_s = self._clock.left_s(self._done, self._total)
        times = [f"{duration(self._clock.elapsed_s())} elapsed", f"{duration(left_s)} left"]
        lines = packed([*self._parts(), *times], size.width)
        bar = Table.grid(expand=True)  # a bare ProgressBar would not end its line
        bar.add_row(ProgressBar(total=self._total or 1, completed=self._done))
        ranked = [] if self._search is None else best_first(self._trials, self._search.mode)
        best = [cut_line(f"best     {trial_line(trial)}", style="bold") for trial in ranked[:1]]
        all_running = [trial for trial in self._trials if trial.state == TrialState.RUNNING]
        shown = all_running[: max(1, size.height - len(lines) - len(best) - 2)]
        running = [f"running  {trial_line(trial)}" for trial in shown]
        if len(shown) < len(all_running):
            running.append(f"         and {len(all_running) - len(shown)} more")
        return Group(*map(cut_line, lines), bar, *best, *map(cut_line, running))

    def _parts(self) -> list[str]:
        """What is done, as text."""
        if self._search is None:
            return ["training the best trials and the preset again", f"{self._done} of {self._total or '-'}"]
        counts = Counter(trial.state for trial in self._trials)
        retries = sum(key.RETRY_OF in trial.user_attrs for trial in self._trials)
        unsuccessful = f"{counts[TrialState.PRUNED]} pruned, {counts[TrialState.FAIL]} failed, {retries} tried again"
        return [f"{self._done} of {self._total} trials", unsuccessful]


# --- Results ----------------------------------------------------------------------------------------------------------


def print_outcome(console: Console, study: TuneStudy, files: Sequence[Path]) -> None:
    """Print the tables of a study and the paths of its files; the paths even if a table cannot be printed."""
    show: Guard[None] = Guard(lambda: None)
    show(_print_tables, console, study)
    for path in files:
        console.print(str(short_path(path)), soft_wrap=True, markup=False)


def _print_tables(console: Console, study: TuneStudy) -> None:
    trials = study.trials
    if not trials:  # interrupted before the first trial
        return
    console.print(trials_table(trials, study.search.mode, console.width))
    if candidates := confirmed(study):
        rows = confirmed_rows(candidates, study.search.mode)
        columns: list[_Cells] = [
            (Column(name, justify="left" if name in ("candidate", "verdict") else "right"), [row[i] for row in rows])
            for i, name in enumerate(HEADER)
        ]
        console.print()
        console.print(_table(columns, [""] * len(rows)))


_Cells = tuple[Column, list[str]]  # a column of a table, and its cells
_MAX_ALL = 30  # show all trials up to this number,
_N_BEST = 10  # and this many of more
_OTHER_COLUMNS = 70  # width of all columns but the parameters
# Columns of results with the digits after the point.
_RESULTS: Mapping[str, tuple[Callable[[FrozenTrial], Any], int]] = {
    "iter": (lambda trial: trial.user_attrs.get(key.ITERATIONS), 0),
    "seconds": (lambda trial: trial.user_attrs.get(key.SECONDS), 1),
    "wall\nseconds": (key.wall_seconds, 1),
    "env\nsteps": (lambda trial: trial.user_attrs.get(key.ENV_STEPS), 0),
    "training\nreturn": (lambda trial: trial.user_attrs.get(key.RETURN), 2),
    "objective": (lambda trial: trial.value, 2),
}


def trials_table(trials: Sequence[FrozenTrial], mode: str = "max", width: int = 80) -> RenderableType:
    """A table of all trials, or of the best 10 of more than 30; a `*` marks the best, and errors are below.

    Parameters that do not fit have a table of their own, or a line for each trial. The objective of a pruned trial is
    that of its last evaluation, and it is not ranked.

    Args:
        trials: all trials of a study, ordered by number.
    """
    ranked = best_first(trials, mode)
    others = [trial for trial in trials if trial.state != TrialState.COMPLETE]
    shown = list(trials) if len(trials) <= _MAX_ALL else [*ranked, *others][:_N_BEST]
    best = next(iter(ranked), None)
    below = [line for trial in shown for line in _error_lines(trial)]
    if len(shown) < len(trials):
        below.append(cut_line(f"{len(shown)} of {len(trials)} trials, the best first: {states(trials)}"))
    return Group(*_in_layout(shown, best, width), *below)


def _in_layout(shown: Sequence[FrozenTrial], best: FrozenTrial | None, width: int) -> list[RenderableType]:
    """One table of the trials if the parameters fit beside the results; else two, or a table and lines."""
    names = list(dict.fromkeys(name for trial in shown for name in trial.params))
    styles = ["bold" if trial is best else "" for trial in shown]
    marks = [f"{'* ' if trial is best else ''}{trial.number}" for trial in shown]
    mark: _Cells = (Column("trial", justify="right", no_wrap=True), marks)
    status: _Cells = (Column("status", no_wrap=True), [trial.state.name for trial in shown])
    parameters = [
        (Column(Text(_in_lines(name)), overflow="fold"), [_cell(trial, name) for trial in shown]) for name in names
    ]
    results = [
        (Column(name, justify="right", no_wrap=True), [number(value_of(trial), digits) for trial in shown])
        for name, (value_of, digits) in _RESULTS.items()
    ]
    needed = sum(2 + max(map(len, [*str(column.header).split("\n"), *cells])) for column, cells in parameters)
    if needed + _OTHER_COLUMNS <= width:
        return [_table([mark, status, *parameters, *results], styles)]
    parts: list[RenderableType] = [_table([mark, status, *results], styles), ""]
    if needed + 7 <= width:
        return [*parts, _table([mark, *parameters], styles)]
    texts = (parameters_text({name: rounded(value, 4) for name, value in trial.params.items()}) for trial in shown)
    return [*parts, *map(Text, map("{}: {}".format, marks, texts), styles)]


def _table(columns: Sequence[_Cells], styles: Sequence[str]) -> Table:
    table = Table(*(column.copy() for column, _ in columns), box=None, header_style="dim", pad_edge=False)
    for style, *cells in zip(styles, *(cells for _, cells in columns), strict=True):
        table.add_row(*map(Text, cells), style=style)
    return table


def _in_lines(name: str) -> str:
    """Break a long name into lines: `learning_`, `rate`."""
    name = one_line(name).removeprefix("policy_kwargs.")
    return re.sub(r"(?<=[._])", "\n", name) if len(name) > 9 else name


def _cell(trial: FrozenTrial, name: str) -> str:
    """The value of a parameter; a dash if the trial lacks it."""
    return value_text(rounded(trial.params[name], 4)) if name in trial.params else "-"


def _error_lines(trial: FrozenTrial) -> list[Text]:
    """The error of a trial, and the path of its traceback."""
    error, path = stored_text(trial, key.ERROR), key.traceback_file(trial)
    lines = [] if error is None else [cut_line(f"trial {trial.number}: {error}")]
    return lines if path is None else [*lines, Text(f"  {one_line(path)}", overflow="fold")]  # a path must not be cut
