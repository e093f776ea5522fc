"""A search on a terminal: its progress while it runs, and tables of its trials and confirmations at its end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from marl_sb3.core.config.values import counted
from marl_sb3.extensions.display.progress import ProgressClock
from marl_sb3.extensions.display.screen import Screen, ScreenSize, cut_line, screen_for
from marl_sb3.extensions.display.text import duration, number, one_line, packed, short_path
from marl_sb3.output import Guard
from marl_sb3.tools.tuning import trial as key
from marl_sb3.tools.tuning.finals import HEADER, outcome_words, race_of
from marl_sb3.tools.tuning.finals import rows as race_rows
from marl_sb3.tools.tuning.search import Search
from marl_sb3.tools.tuning.space import edge_warnings
from marl_sb3.tools.tuning.study import TuneStudy, best_first
from marl_sb3.tools.tuning.trial import parameters_text, rounded, row, states, stored_text, trial_line, value_text

# --- Progress ---------------------------------------------------------------------------------------------------------


class SearchView:
    """The progress of trials, or of finalists: a live view with a bar if the console supports it.

    Otherwise, a line is printed for each that has finished. A context manager. An error of the view is logged, and ends
    nothing but the view.

    Args:
        console: where to draw; None: nowhere.
        study: whose trials are shown; None: finalists are.
        keep: leave the last picture on the screen.
        race: how many trainings of finalists there are at most, after the trials that are shown or in all.
    """

    def __init__(
        self, console: Console | None, study: TuneStudy | None = None, *, keep: bool = False, race: int = 0
    ) -> None:
        self._console = console
        self._search = None if study is None else study.search
        # Read from the storage before it is drawn in another thread.
        self._trials: Sequence[FrozenTrial] = () if study is None else study.trials
        self._done, self._total = (0, 0) if study is None else (study.n_done(), study.search.n_trainings)
        self._most: float = race  # what is done in the end, in the unit of what is counted
        if study is not None and race:
            longer = study.search.final_config({}, 0).n_timesteps / study.search.trial_config({}, 0).n_timesteps
            self._most = self._total + race * longer * study.search.generations
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

        def show() -> None:
            before = {trial.number for trial in self._trials if trial.state.is_finished()}
            self._trials = study.trials
            fresh = [trial for trial in self._trials if trial.state.is_finished() and trial.number not in before]
            self._advance(study.n_done(), map(trial_line, fresh))

        if self._console is not None:
            self._show(show)

    def update_finals(self, done: int, total: int) -> None:
        """Show how many trainings of finalists are finished, of those that are planned so far; see `run_finals`."""

        def show() -> None:
            if self._total == 0:  # trainings of an earlier search do not count for the pace
                self._clock.begin(done)
            self._total = total
            line = f"finalists, trained with fresh seeds: {done} of {total} so far"
            self._advance(done, [line] if done > self._done else [])

        if self._console is not None:
            self._show(show)

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
        left_s = self._clock.left_s(self._done, max(self._total, self._most))
        more = "" if self._most <= self._total else " at most" if self._search is None else ", finalists included"
        left = [] if left_s is None else [f"{duration(left_s)} left{more}"]
        times = [f"{duration(self._clock.elapsed_s())} elapsed", *left]
        lines = packed([*self._parts(), *times], size.width)
        bar = Table.grid(expand=True)  # a bare ProgressBar would not end its line
        bar.add_row(ProgressBar(total=self._total or 1, completed=self._done))
        ranked = [] if self._search is None else best_first(self._trials, self._search.objectives()[0].sign)
        best = [cut_line(f"best     {trial_line(trial)}", style="bold") for trial in ranked[:1]]
        candidates = self._members() or [trial for trial in self._trials if trial.state == TrialState.RUNNING]
        shown = candidates[: max(1, size.height - len(lines) - len(best) - 2)]
        running = [f"{'trained' if each.state.is_finished() else 'running'}  {trial_line(each)}" for each in shown]
        if len(shown) < len(candidates):
            running.append(f"         and {len(candidates) - len(shown)} more")
        return Group(*map(cut_line, lines), bar, *best, *map(cut_line, running))

    def _members(self) -> list[FrozenTrial]:
        """Of a population, the latest trial of each member that was started, those that run first."""
        started = [trial for trial in self._trials if trial.state != TrialState.WAITING]
        latest = {trial.user_attrs[key.MEMBER]: trial for trial in started if key.MEMBER in trial.user_attrs}
        return sorted(latest.values(), key=lambda trial: (trial.state.is_finished(), trial.user_attrs[key.MEMBER]))

    def _parts(self) -> list[str]:
        """What is done, as text."""
        if self._search is None:
            return ["finalists and the preset, with fresh seeds", f"{self._done} of {self._total or '-'} so far"]
        counts = Counter(trial.state for trial in self._trials)
        retries = sum(key.RETRY_OF in trial.user_attrs for trial in self._trials)
        unsuccessful = f"{counts[TrialState.PRUNED]} pruned, {counts[TrialState.FAIL]} failed, {retries} tried again"
        done = [f"{self._done} of {self._total} trials"]
        if self._search.is_population:
            begun = max((trial.user_attrs[key.GENERATION] for trial in self._trials), default=0)
            done.insert(0, f"generation {begun} of 0 to {self._search.generations - 1}")
        return [*done, unsuccessful]


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
    console.print(trials_table(study, console.width))
    cells = race_rows(race) if (race := race_of(study)) else []
    if any(seeds != "0" for _, seeds, *_ in cells):  # a finalist was trained
        columns: list[_Cells] = [
            (Column(name, justify="left" if name in ("candidate", "verdict") else "right"), list(values))
            for name, values in zip(HEADER, zip(*cells, strict=True), strict=True)
        ]
        console.print()
        console.print(_table(columns, [""] * len(cells)))
    best = [trial.params for trial in study.completed()[:_N_AT_AN_EDGE]]
    run = ""
    if study.search.is_population and study.completed():
        run = f"The run of the best member, with its policies: {short_path(study.folder_of(study.best_trial))}"
    for line in filter(None, [*edge_warnings(study.space, best), outcome_words(study), run]):
        console.print()
        console.print(Text(line))


_N_AT_AN_EDGE = 5  # best trials that are looked at for parameters at the ends of their ranges
_Cells = tuple[Column, list[str]]  # a column of a table, and its cells
_MAX_ALL = 30  # show all trials up to this number,
_N_BEST = 10  # and this many of more
_OTHER_COLUMNS = 70  # width of all columns but the parameters
# Of columns of results the header, the name in `trials.csv`, and the digits after the point.
_RESULTS = (
    ("iter", key.ITERATIONS, 0),
    ("wall\nseconds", "wall_seconds", 1),
    ("CPU\nseconds", key.CPU_SECONDS, 1),
    ("env\nsteps", key.ENV_STEPS, 0),
    ("training\nreturn", key.RETURN, 2),
)


def trials_table(study: TuneStudy, width: int = 80) -> RenderableType:
    """A table of all trials, or of the best 10 of more than 30; a `*` marks the best, and errors are below.

    Of several objectives, it marks the trials that no other one beats in all of them, and those come first. Parameters
    that do not fit have a table of their own, or a line for each trial. The objective of a pruned trial is that of its
    last evaluation, and it is not ranked. Trials that have not begun are counted below.
    """
    trials = [trial for trial in study.trials if trial.state != TrialState.WAITING]
    waiting, best = len(study.trials) - len(trials), study.front()
    ranked = [*best, *(trial for trial in study.completed() if trial not in best)]
    others = [trial for trial in trials if trial.state != TrialState.COMPLETE]
    shown = list(trials) if len(trials) <= _MAX_ALL else [*ranked, *others][:_N_BEST]
    below: list[Text] = []
    for trial in shown:
        if (error := stored_text(trial, key.ERROR)) not in (None, key.INTERRUPTED):
            below.append(cut_line(f"trial {trial.number}: {error}"))
        if (path := key.traceback_file(trial)) is not None:
            below.append(Text(f"  {one_line(path)}", overflow="fold"))  # a path must not be cut
    if len(shown) < len(trials):
        below.append(cut_line(f"{len(shown)} of {len(trials)} trials, the best first: {states(trials)}"))
    if waiting:
        below.append(cut_line(f"{counted(waiting, 'more trial')} waiting"))
    return Group(*_in_layout(study.search, shown, best, width), *below)


def _in_layout(
    search: Search, shown: Sequence[FrozenTrial], best: Sequence[FrozenTrial], width: int
) -> list[RenderableType]:
    """One table of the trials if the parameters fit beside the results; else two, or a table and lines."""
    rows, objectives = [row(search, trial) for trial in shown], [objective.of for objective in search.objectives()]
    names = list(dict.fromkeys(name for trial in shown for name in trial.params))
    styles = ["bold" if trial in best else "" for trial in shown]
    marks = [f"{'* ' if trial in best else ''}{trial.number}" for trial in shown]
    mark: _Cells = (Column("trial", justify="right", no_wrap=True), marks)
    ends = ["INTERRUPTED" if stored_text(trial, key.ERROR) == key.INTERRUPTED else trial.state.name for trial in shown]
    status: _Cells = (Column("status", no_wrap=True), ends)
    parameters = [
        (
            Column(Text(_in_lines(name)), overflow="fold"),
            [value_text(rounded(trial.params[name], 4)) if name in trial.params else "-" for trial in shown],
        )
        for name in names
    ]
    results = [
        (Column(name, justify="right", no_wrap=True), [number(each[column], digits) for each in rows])
        for name, column, digits in _RESULTS
    ]
    for index, name in enumerate(objectives if len(objectives) > 1 else ["objective"]):
        values = [number(trial.values and trial.values[index]) for trial in shown]
        results.append((Column(Text(_in_lines(name)), justify="right", no_wrap=True), values))
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
