"""Views of a running search and of its confirmations; an error of a view does not end the search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from marl_sb3.display.progress import Pace
from marl_sb3.display.screen import Guard, Room, screen_for
from marl_sb3.display.text import duration, packed, short_path
from marl_sb3.tuning.confirmed import confirmed
from marl_sb3.tuning.report.files import write_files
from marl_sb3.tuning.report.tables import confirmed_table, trials_table
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial_attributes import RETRY_OF
from marl_sb3.tuning.trial_text import trial_line


class _View:
    """A live view if the console supports one, lines of text otherwise; a context manager.

    Args:
        keep: leave the last picture on the screen.
    """

    def __init__(self, console: Console, *, keep: bool = False) -> None:
        self._console = console
        self._screen = screen_for(console, self.draw, keep=keep)
        self._show: Guard[None] = Guard(self._close)

    def draw(self, room: Room) -> RenderableType:
        """Draw the present state."""
        raise NotImplementedError

    def __enter__(self: _T) -> _T:
        if self._screen is not None:
            self._show(self._screen.open)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show(self._close)

    def _close(self) -> None:
        if self._screen is not None:
            self._screen.close()

    def _refresh(self) -> None:
        if self._screen is not None:
            self._screen.refresh()

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


_T = TypeVar("_T", bound=_View)


@dataclass(frozen=True)
class _Trials:
    """The state of a search, read from the storage before it is drawn in another thread."""

    trials: Sequence[FrozenTrial] = ()
    done: int = 0
    best: Sequence[FrozenTrial] = field(default_factory=list)

    def running(self) -> list[FrozenTrial]:
        return [trial for trial in self.trials if trial.state == TrialState.RUNNING]


class SearchView(_View):
    """The number of finished trials, elapsed and remaining time, the best trial, and the running trials.

    Args:
        console: where to draw; without support for live views, a line is printed for each finished trial.
        keep: leave the last picture on the screen.
    """

    def __init__(self, console: Console, study: TuneStudy, *, keep: bool = False) -> None:
        self._total = study.search.trials
        self._printed = {trial.number for trial in study.trials if trial.state.is_finished()}
        self._seen = _Trials(done=study.n_done())
        self._pace = Pace()
        self._pace.begin(self._seen.done)
        super().__init__(console, keep=keep)

    def update(self, study: TuneStudy) -> None:
        """Show the present state; see `run_trials`."""
        self._show(self._update, study)

    def _update(self, study: TuneStudy) -> None:
        seen = _Trials(study.trials, study.n_done(), study.completed()[:1])
        if seen.done > self._seen.done:
            self._pace.add(seen.done)
        self._seen = seen
        if self._screen is None:
            self._print_new(seen.trials)
        self._refresh()

    def _print_new(self, trials: Sequence[FrozenTrial]) -> None:
        for trial in trials:
            if trial.state.is_finished() and trial.number not in self._printed:
                self._printed.add(trial.number)
                self._print(trial_line(trial))

    def draw(self, room: Room) -> RenderableType:
        """Draw the present state."""
        seen, counts = self._seen, Counter(trial.state for trial in self._seen.trials)
        parts = [
            f"{seen.done} of {self._total} trials",
            f"{counts[TrialState.PRUNED]} pruned, {counts[TrialState.FAIL]} failed, "
            f"{sum(RETRY_OF in trial.user_attrs for trial in seen.trials)} tried again",
            f"{duration(self._pace.elapsed_s())} elapsed",
            f"{duration(self._pace.left_s(seen.done, self._total))} left",
        ]
        lines = packed(parts, room.width)
        best = [_line(f"best     {trial_line(trial)}", style="bold") for trial in seen.best]
        running = [_line(f"running  {trial_line(trial)}") for trial in seen.running()]
        shown = running[: max(1, room.height - len(lines) - len(best) - 2)]
        if len(shown) < len(running):
            shown.append(_line(f"         and {len(running) - len(shown)} more"))
        return Group(*map(_line, lines), _bar(self._total, seen.done), *best, *shown)


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _bar(total: int | None, done: int) -> Table:
    bar = Table.grid(expand=True)  # a bare ProgressBar would not end its line
    bar.add_row(ProgressBar(total=total, completed=done))
    return bar


class ConfirmView(_View):
    """The number of finished trainings with fresh seeds.

    Args:
        console: where to draw; without support for live views, a line is printed for each finished training.
        keep: leave the last picture on the screen.
    """

    def __init__(self, console: Console, *, keep: bool = False) -> None:
        self._done, self._total = 0, 0
        self._pace = Pace()
        super().__init__(console, keep=keep)

    def update(self, done: int, total: int) -> None:
        """Show the present state; see `run_trials`."""
        self._show(self._update, done, total)

    def _update(self, done: int, total: int) -> None:
        if self._total == 0:  # trainings of an earlier search do not count for the pace
            self._pace.begin(done)
        elif done > self._done:
            self._pace.add(done)
        if self._screen is None and done > self._done:
            self._print(f"trained again with fresh seeds: {done} of {total}")
        self._done, self._total = done, total
        self._refresh()

    def draw(self, room: Room) -> RenderableType:
        """Draw the present state."""
        parts = [
            "training the best trials and the preset again",
            f"{self._done} of {self._total or '-'}",
            f"{duration(self._pace.elapsed_s())} elapsed",
            f"{duration(self._pace.left_s(self._done, self._total))} left",
        ]
        return Group(*map(_line, packed(parts, room.width)), _bar(self._total or 1, self._done))


def print_outcome(console: Console, study: TuneStudy) -> None:
    """Write the files of a study and print its tables; the files are written even if a table cannot be printed."""
    paths = write_files(study)
    show: Guard[None] = Guard(lambda: None)
    show(_print_tables, console, study)
    for path in paths:
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
