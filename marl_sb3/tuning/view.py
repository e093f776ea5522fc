"""A search on a terminal: its progress while it runs, and tables of its trials and confirmations at its end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marl_sb3.display.progress import ProgressClock
from marl_sb3.display.screen import Guard, ScreenSize, cut_line, screen_for
from marl_sb3.display.text import duration, number, packed, short_path
from marl_sb3.tuning import trial as key
from marl_sb3.tuning.confirmed import HEADER, Candidate, confirmed, confirmed_rows
from marl_sb3.tuning.study import TuneStudy, best_first
from marl_sb3.tuning.trial import error_text, one_line, parameters_text, states, trial_line, value_text, wall_seconds

# --- Progress ---------------------------------------------------------------------------------------------------------


class _View:
    """A progress bar if the console supports live views, lines of text otherwise; a context manager.

    An error of the view is logged, and ends nothing but the view.

    Args:
        done: how much of it was done before.
        keep: leave the last picture on the screen.
    """

    def __init__(self, console: Console, done: int, total: int, *, keep: bool) -> None:
        self._console = console
        self._done, self._total = done, total
        self._clock = ProgressClock()
        self._clock.begin(done)
        self._screen = screen_for(console, self.draw, keep=keep)
        self._show: Guard[None] = Guard(self._screen.close)

    def __enter__(self) -> Self:
        self._show(self._screen.open)
        return self

    def __exit__(self, *_: object) -> None:
        self._show(self._screen.close)

    def _advance(self, done: int, lines: Iterable[str]) -> None:
        """Show that so much is done; without a live view, print the lines."""
        if done > self._done:
            self._clock.add(done)
        self._done = done
        self._screen.refresh()
        for line in () if self._screen.is_live else lines:
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def draw(self, size: ScreenSize) -> RenderableType:
        """Draw the present state."""
        left_s = self._clock.left_s(self._done, self._total)
        times = [f"{duration(self._clock.elapsed_s())} elapsed", f"{duration(left_s)} left"]
        lines = packed([*self._parts(), *times], size.width)
        bar = Table.grid(expand=True)  # a bare ProgressBar would not end its line
        bar.add_row(ProgressBar(total=self._total or 1, completed=self._done))
        return Group(*map(cut_line, lines), bar, *self._below(size.height - len(lines) - 1))

    def _parts(self) -> list[str]:
        """What is done, as text."""
        raise NotImplementedError

    def _below(self, height: int) -> list[Text]:
        """Lines below the bar."""
        return []


class SearchView(_View):
    """The number of finished trials, elapsed and remaining time, the best trial, and the running trials.

    Args:
        console: where to draw; without support for live views, a line is printed for each finished trial.
        keep: leave the last picture on the screen.
    """

    def __init__(self, console: Console, study: TuneStudy, *, keep: bool = False) -> None:
        # Read from the storage before it is drawn in another thread.
        self._trials: Sequence[FrozenTrial] = ()
        self._best: FrozenTrial | None = None
        self._printed = {trial.number for trial in study.trials if trial.state.is_finished()}
        super().__init__(console, study.n_done(), study.search.trials, keep=keep)

    def update(self, study: TuneStudy) -> None:
        """Show the present state; see `run_trials`."""
        self._show(self._update, study)

    def _update(self, study: TuneStudy) -> None:
        self._trials, self._best = study.trials, next(iter(study.completed()), None)
        finished = [trial for trial in self._trials if trial.state.is_finished()]
        fresh = [trial for trial in finished if trial.number not in self._printed]
        self._printed.update(trial.number for trial in fresh)
        self._advance(study.n_done(), map(trial_line, fresh))

    def _parts(self) -> list[str]:
        counts = Counter(trial.state for trial in self._trials)
        retries = sum(key.RETRY_OF in trial.user_attrs for trial in self._trials)
        unsuccessful = f"{counts[TrialState.PRUNED]} pruned, {counts[TrialState.FAIL]} failed, {retries} tried again"
        return [f"{self._done} of {self._total} trials", unsuccessful]

    def _below(self, height: int) -> list[Text]:
        best = [] if self._best is None else [cut_line(f"best     {trial_line(self._best)}", style="bold")]
        running = [trial for trial in self._trials if trial.state == TrialState.RUNNING]
        shown = running[: max(1, height - len(best) - 1)]
        lines = [cut_line(f"running  {trial_line(trial)}") for trial in shown]
        more = len(running) - len(shown)
        return [*best, *lines, *([cut_line(f"         and {more} more")] if more else [])]


class ConfirmView(_View):
    """The number of finished trainings with fresh seeds.

    Args:
        console: where to draw; without support for live views, a line is printed for each finished training.
        keep: leave the last picture on the screen.
    """

    def __init__(self, console: Console, *, keep: bool = False) -> None:
        super().__init__(console, 0, 0, keep=keep)

    def update(self, done: int, total: int) -> None:
        """Show the present state; see `confirm`."""
        self._show(self._update, done, total)

    def _update(self, done: int, total: int) -> None:
        if self._total == 0:  # trainings of an earlier search do not count for the pace
            self._clock.begin(done)
        self._total = total
        line = f"trained again with fresh seeds: {done} of {total}"
        self._advance(done, [line] if done > self._done else [])

    def _parts(self) -> list[str]:
        return ["training the best trials and the preset again", f"{self._done} of {self._total or '-'}"]


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
    candidates = confirmed(study)
    if candidates:
        console.print()
        console.print(confirmed_table(candidates, study.search.mode))


def confirmed_table(candidates: Sequence[Candidate], mode: str) -> Table:
    """A table of the candidates."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in HEADER:
        table.add_column(name, justify="left" if name in ("candidate", "verdict") else "right")
    for row in confirmed_rows(candidates, mode):
        table.add_row(*row)
    return table


_MAX_ALL = 30  # show all trials up to this number,
_N_BEST = 10  # and this many of more
_OTHER_COLUMNS = 70  # width of all columns but the parameters
# Columns of results with the digits after the point.
_RESULTS: Mapping[str, tuple[Callable[[FrozenTrial], Any], int]] = {
    "iter": (lambda trial: trial.user_attrs.get(key.ITERATIONS), 0),
    "seconds": (lambda trial: trial.user_attrs.get(key.SECONDS), 1),
    "wall\nseconds": (wall_seconds, 1),
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
    names = list(dict.fromkeys(name for trial in shown for name in trial.params))
    needed = sum(_width_of(name, shown) + 2 for name in names)
    if needed + _OTHER_COLUMNS <= width:
        parts: list[RenderableType] = [_table(shown, best, names, results=True)]
    elif needed + 7 <= width:
        parts = [_table(shown, best, [], results=True), "", _table(shown, best, names)]
    else:
        parts = [_table(shown, best, [], results=True), ""]
        parts += [
            Text(f"{_mark(trial, best)}: {parameters_text(_short(trial.params))}", _style(trial, best))
            for trial in shown
        ]
    below = [line for trial in shown for line in _error_lines(trial)]
    if len(shown) < len(trials):
        below.append(cut_line(f"{len(shown)} of {len(trials)} trials, the best first: {states(trials)}"))
    return Group(*parts, *below)


def _table(
    shown: Sequence[FrozenTrial], best: FrozenTrial | None, names: Sequence[str], *, results: bool = False
) -> Table:
    """A table of the parameters `names` of each trial, and of its status and results."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("trial", justify="right", no_wrap=True)
    if results:
        table.add_column("status", no_wrap=True)
    for name in names:
        table.add_column(Text(_in_lines(name)), overflow="fold")
    for name in _RESULTS if results else ():
        table.add_column(name, justify="right", no_wrap=True)
    for trial in shown:
        figures = [number(value_of(trial), digits) for value_of, digits in _RESULTS.values()] if results else []
        cells = [_mark(trial, best), *([trial.state.name] if results else []), *(_cell(trial, name) for name in names)]
        table.add_row(*map(Text, [*cells, *figures]), style=_style(trial, best))
    return table


def _mark(trial: FrozenTrial, best: FrozenTrial | None) -> str:
    return f"{'* ' if trial is best else ''}{trial.number}"


def _style(trial: FrozenTrial, best: FrozenTrial | None) -> str:
    return "bold" if trial is best else ""


def _in_lines(name: str) -> str:
    """Break a long name into lines: `learning_`, `rate`."""
    name = one_line(name).removeprefix("policy_kwargs.")
    return re.sub(r"(?<=[._])", "\n", name) if len(name) > 9 else name


def _width_of(name: str, shown: Sequence[FrozenTrial]) -> int:
    """The width of a parameter's column."""
    return max(map(len, [*_in_lines(name).split("\n"), *(_cell(trial, name) for trial in shown)]))


def _cell(trial: FrozenTrial, name: str) -> str:
    """The value of a parameter; a dash if the trial lacks it."""
    return value_text(_short(trial.params)[name]) if name in trial.params else "-"


def _short(params: dict[str, Any]) -> dict[str, Any]:
    """Round floats to four significant digits."""
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in params.items()}


def _error_lines(trial: FrozenTrial) -> list[Text]:
    """The error of a trial, and the path of its traceback."""
    error, path = error_text(trial), key.traceback_file(trial)
    lines = [] if error is None else [cut_line(f"trial {trial.number}: {error}")]
    return lines if path is None else [*lines, Text(f"  {one_line(path)}", overflow="fold")]  # a path must not be cut
