"""Tables of trials, and of trainings with fresh seeds, for terminals."""

from __future__ import annotations

import re
from collections.abc import Sequence

from optuna.trial import FrozenTrial
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from marl_sb3.display.text import number
from marl_sb3.tuning.confirmed import Candidate
from marl_sb3.tuning.stats import Interval, compare
from marl_sb3.tuning.study import best_first
from marl_sb3.tuning.trial_attributes import ENV_STEPS, ITERATIONS, RETURN, SECONDS
from marl_sb3.tuning.trial_text import error_text, one_line, states, traceback_file, value_text, wall_seconds

HEADER = ("candidate", "seeds", "mean", "95 % CI", "better than preset", "verdict")


def confirmed_rows(candidates: Sequence[Candidate], mode: str) -> list[list[str]]:
    """A row for each candidate with the columns of `HEADER`; the first candidate is the preset.

    "Better than preset" is the probability, with its 95 % confidence interval, that a training with these settings
    has a better objective than one with the preset's.
    """
    # `compare` takes more as better: with mode min, values change their signs before it and back after it.
    sign = 1.0 if mode == "max" else -1.0
    preset, *others = ([sign * value for value in candidate.values] for candidate in candidates)
    stats = [compare(values, preset) for values in (preset, *others)]
    rows = []
    for candidate, comparison in zip(candidates, stats, strict=True):
        low, high = sorted(sign * bound for bound in comparison.winner_ci)
        failed = f", {candidate.failed} failed" if candidate.failed else ""
        seeds, mean = f"{len(candidate.values)}{failed}", number(sign * comparison.winner_mean)
        chance, verdict = _chance(comparison.improvement, comparison.improvement_ci), comparison.verdict()
        against = ["", ""] if candidate.trial is None else [chance, verdict]
        rows.append([candidate.name, seeds, mean, f"{number(low)} to {number(high)}", *against])
    return rows


def _chance(improvement: float, interval: Interval) -> str:
    low, high = interval
    return f"{improvement:.0%} ({low:.0%} to {high:.0%})"


def confirmed_table(candidates: Sequence[Candidate], mode: str) -> Table:
    """A table of the candidates for a terminal."""
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in HEADER:
        table.add_column(name, justify="left" if name in ("candidate", "verdict") else "right")
    for row in confirmed_rows(candidates, mode):
        table.add_row(*row)
    return table


def confirmed_line(candidates: Sequence[Candidate], trial: int | None, mode: str) -> str:
    """The results of a trial and the preset, compared on one line."""
    rows = dict(zip((candidate.trial for candidate in candidates), confirmed_rows(candidates, mode), strict=True))
    _, seeds, mean, interval, chance, verdict = rows[trial]
    return (
        f"with {seeds} fresh seeds {mean} ({interval}), the preset {rows[None][2]} ({rows[None][3]}): "
        f"{verdict}; better in {chance} of pairs"
    )


_MAX_ALL = 30  # show all trials up to this number,
_N_BEST = 10  # and this many of more
_OTHER_COLUMNS = 70  # width of all columns but the parameters


def trials_table(trials: Sequence[FrozenTrial], mode: str = "max", width: int = 80) -> RenderableType:
    """A table of all trials, or of the best 10 of more than 30; a `*` marks the best, and errors are below.

    Parameters that do not fit have a table of their own. The objective of a pruned trial is that of its last
    evaluation, and it is not ranked.

    Args:
        trials: all trials of a study, ordered by number.
    """
    ranked = best_first(trials, mode)
    complete = {trial.number for trial in ranked}
    others = [trial for trial in trials if trial.number not in complete]
    shown = list(trials) if len(trials) <= _MAX_ALL else [*ranked, *others][:_N_BEST]
    best = next(iter(ranked), None)
    names = list(dict.fromkeys(name for trial in shown for name in trial.params))
    needed = sum(_width_of(name, shown) + 2 for name in names)
    fits = needed + _OTHER_COLUMNS <= width
    parts: list[RenderableType] = [_results(shown, best, names if fits else [])]
    if not fits:
        parts += ["", *(_parameters(shown, best, names) if needed + 7 <= width else _parameter_lines(shown, best))]
    return Group(*parts, *_below(trials, shown))


def _results(shown: Sequence[FrozenTrial], best: FrozenTrial | None, names: Sequence[str]) -> Table:
    """A table of the results of each trial, with the parameters `names`."""
    table = _empty_table(["trial", "status"])
    _add_parameters(table, names)
    for name in ("iter", "seconds", "wall\nseconds", "env\nsteps", "training\nreturn", "objective"):
        table.add_column(name, justify="right", no_wrap=True)
    for trial in shown:
        attributes = trial.user_attrs
        cells = [
            _mark(trial, best),
            trial.state.name,
            *_parameter_cells(trial, names),
            number(attributes.get(ITERATIONS), 0),
            number(attributes.get(SECONDS), 1),
            number(wall_seconds(trial), 1),
            number(attributes.get(ENV_STEPS), 0),
            number(attributes.get(RETURN)),
            number(trial.value),
        ]
        table.add_row(*map(Text, cells), style="bold" if trial is best else None)
    return table


def _parameter_lines(shown: Sequence[FrozenTrial], best: FrozenTrial | None) -> list[Text]:
    """A line of parameters for each trial, as after `--set`."""
    lines = []
    for trial in shown:
        cells = zip(map(one_line, trial.params), _parameter_cells(trial, list(trial.params)), strict=True)
        text = " ".join(f"{name}={cell}" for name, cell in cells)
        lines.append(Text(f"{_mark(trial, best)}: {text}", style="bold" if trial is best else ""))
    return lines


def _parameters(shown: Sequence[FrozenTrial], best: FrozenTrial | None, names: Sequence[str]) -> list[Table]:
    """A table of the parameters of each trial."""
    table = _empty_table(["trial"])
    _add_parameters(table, names)
    for trial in shown:
        cells = [_mark(trial, best), *_parameter_cells(trial, names)]
        table.add_row(*map(Text, cells), style="bold" if trial is best else None)
    return [table]


def _empty_table(names: Sequence[str]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name == "trial" else "left", no_wrap=True)
    return table


def _add_parameters(table: Table, names: Sequence[str]) -> None:
    for name in names:
        table.add_column(Text(_in_lines(name)), overflow="fold")


def _mark(trial: FrozenTrial, best: FrozenTrial | None) -> str:
    return f"{'* ' if trial is best else ''}{trial.number}"


def _in_lines(name: str) -> str:
    """Break a long name into lines: `learning_`, `rate`."""
    name = one_line(name).removeprefix("policy_kwargs.")
    return re.sub(r"(?<=[._])", "\n", name) if len(name) > 9 else name


def _width_of(name: str, shown: Sequence[FrozenTrial]) -> int:
    """The width of a parameter's column."""
    cells = [*_in_lines(name).split("\n"), *(_parameter_cells(trial, [name])[0] for trial in shown)]
    return max(map(len, cells))


def _parameter_cells(trial: FrozenTrial, names: Sequence[str]) -> list[str]:
    """The values of parameters; floats have four significant digits."""
    rounded = {
        name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in trial.params.items()
    }
    return [value_text(rounded[name]) if name in rounded else "-" for name in names]


def _below(trials: Sequence[FrozenTrial], shown: Sequence[FrozenTrial]) -> list[Text]:
    """Errors with the paths of their tracebacks, and the number of trials that are shown."""
    lines = [line for trial in shown for line in _error_lines(trial)]
    if len(shown) < len(trials):
        lines.append(_line(f"{len(shown)} of {len(trials)} trials, the best first: {states(trials)}"))
    return lines


def _error_lines(trial: FrozenTrial) -> list[Text]:
    error, path = error_text(trial), traceback_file(trial)
    lines = [] if error is None else [_line(f"trial {trial.number}: {error}")]
    return lines if path is None else [*lines, Text(f"  {one_line(path)}", overflow="fold")]  # a path must not be cut


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")
