"""What is left of a study in its folder: its trials as a file and as a page, and the settings that won."""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from marl_sb3.config import to_yaml
from marl_sb3.config.schema import value_of
from marl_sb3.display.text import number
from marl_sb3.errors import ConfigError
from marl_sb3.storage.atomic import write_whole
from marl_sb3.tuning.confirm import confirmed, outcomes, winner
from marl_sb3.tuning.confirm_table import confirmed_line
from marl_sb3.tuning.report_page import html_report
from marl_sb3.tuning.search import THE_SEARCH
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial_attributes import SEED
from marl_sb3.tuning.trial_rows import (
    error_text,
    header,
    measured,
    one_line,
    row,
    states,
    traceback_file,
    value_text,
)

_log = logging.getLogger(__name__)

_ALL_UP_TO = 30
_BEST = 10
_WIDTH_OF_OTHERS = 61  # columns than those of the parameters


def write_files(study: TuneStudy) -> list[Path]:
    """Write all that there is to write of a study into its folder; without plotly there is no page.

    Raises:
        OSError: it cannot be written.
    """
    files = [trials_csv(study), confirm_csv(study), best_yml(study)]
    try:
        files.append(html_report(study))
    except ConfigError as error:
        _log.warning("no report.html: %s", error)
    return [path for path in files if path is not None]


def confirm_csv(study: TuneStudy) -> Path | None:
    """Write `confirm.csv`: a row per training with a fresh seed; None if there was none."""
    rows = [
        [name, outcome["seed"], outcome.get("objective"), one_line(outcome.get("error", "")), folder.as_posix()]
        for name, folder, outcome in outcomes(study)
    ]
    if not rows:
        return None
    return _write_csv(study.folder / "confirm.csv", ["candidate", "seed", "objective", "error", "folder"], rows)


def trials_csv(study: TuneStudy) -> Path:
    """Write `trials.csv`: a row per trial, whatever became of it; empty where there is no value."""
    return _write_csv(study.folder / "trials.csv", header(study), [row(study, trial) for trial in study.trials])


def _write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return write_whole(path, text.getvalue())


# --- On a terminal ---------------------------------------------------------------------------------------------------


def trials_table(trials: Sequence[FrozenTrial], mode: str = "max", width: int = 80) -> RenderableType:
    """All trials, or the best 10 of more than 30; the best is marked by a `*`, and errors stand below.

    Many parameters have a table of their own. The objective of a trial that was given up (pruned) is that of its last
    evaluation: it competes with no other.

    Args:
        trials: of a study, in the order of their numbers.
        mode: `max` or `min`.
        width: of the terminal, in characters.
    """
    ranked = _best_first(trials, mode)
    shown = list(trials) if len(trials) <= _ALL_UP_TO else ranked[:_BEST]
    best = ranked[0] if ranked and ranked[0].state == TrialState.COMPLETE else None
    names = list(dict.fromkeys(name for trial in shown for name in trial.params))
    needed = sum(_width_of(name, shown) + 2 for name in names)
    fits = needed + _WIDTH_OF_OTHERS <= width
    parts: list[RenderableType] = [_results(shown, best, names if fits else [])]
    if not fits:
        parts += ["", *(_parameters(shown, best, names) if needed + 7 <= width else _parameter_lines(shown, best))]
    return Group(*parts, *_below(trials, shown))


def _results(shown: Sequence[FrozenTrial], best: FrozenTrial | None, names: Sequence[str]) -> Table:
    """What became of each trial, with these parameters."""
    table = _empty_table(["trial", "status"])
    _add_parameters(table, names)
    for name in ("iter", "seconds", "env\nsteps", "training\nreturn", "objective"):
        table.add_column(name, justify="right", no_wrap=True)
    for trial in shown:
        notes = trial.user_attrs
        cells = [
            _mark(trial, best),
            trial.state.name,
            *_parameter_cells(trial, names),
            number(notes.get("iterations"), 0),
            number(notes.get("seconds"), 1),
            number(notes.get("env_steps"), 0),
            number(notes.get("return")),
            number(trial.value),
        ]
        table.add_row(*map(Text, cells), style="bold" if trial is best else None)
    return table


def _parameter_lines(shown: Sequence[FrozenTrial], best: FrozenTrial | None) -> list[Text]:
    """The parameters of each trial, as after `--set`."""
    lines = []
    for trial in shown:
        cells = zip(map(one_line, trial.params), _parameter_cells(trial, list(trial.params)), strict=True)
        text = " ".join(f"{name}={cell}" for name, cell in cells)
        lines.append(Text(f"{_mark(trial, best)}: {text}", style="bold" if trial is best else ""))
    return lines


def _parameters(shown: Sequence[FrozenTrial], best: FrozenTrial | None, names: Sequence[str]) -> list[Table]:
    """The parameters of each trial alone."""
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
    """A long name in several lines: `learning_`, `rate`."""
    name = one_line(name).removeprefix("policy_kwargs.")
    return re.sub(r"(?<=[._])", "\n", name) if len(name) > 9 else name


def _width_of(name: str, shown: Sequence[FrozenTrial]) -> int:
    """Of a parameter's column."""
    cells = [*_in_lines(name).split("\n"), *(_parameter_cells(trial, [name])[0] for trial in shown)]
    return max(map(len, cells))


def _parameter_cells(trial: FrozenTrial, names: Sequence[str]) -> list[str]:
    """A cell for each parameter; of numbers four digits."""
    rounded = {
        name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in trial.params.items()
    }
    return [value_text(rounded[name]) if name in rounded else "-" for name in names]


def _best_first(trials: Sequence[FrozenTrial], mode: str) -> list[FrozenTrial]:
    """By their values, of equal ones the earlier first; then those without a value, in their order."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    sign = -1.0 if mode == "max" else 1.0
    ranked = sorted(complete, key=lambda trial: (sign * (trial.value or 0.0), trial.number))
    return ranked + [trial for trial in trials if trial.state != TrialState.COMPLETE]


def _below(trials: Sequence[FrozenTrial], shown: Sequence[FrozenTrial]) -> list[Text]:
    """Errors, each in a line with its traceback's path in the next, and how many trials are not shown."""
    lines = [line for trial in shown for line in _error_lines(trial)]
    if len(shown) < len(trials):
        lines.append(_line(f"{len(shown)} of {len(trials)} trials, the best first: {states(trials)}"))
    return lines


def _error_lines(trial: FrozenTrial) -> list[Text]:
    error, path = error_text(trial), traceback_file(trial)
    lines = [] if error is None else [_line(f"trial {trial.number}: {error}")]
    return lines if path is None else [*lines, Text(f"  {one_line(path)}", overflow="fold")]  # a path is not cut


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


# --- The settings that won -------------------------------------------------------------------------------------------


def best_yml(study: TuneStudy) -> Path | None:
    """Write `best.yml`: the configuration of the winner, for `python -m marl_sb3.train --hparams best.yml`.

    It is what the trial was trained with, but with a new seed in every run, and with as many env steps, evaluations
    and checkpoints as there are without a search: those of the preset, or what `--set` says.

    Returns:
        None if no trial was trained to its end; nothing is written then.

    Raises:
        ConfigError: the trial's `config.yaml` is missing or damaged.
    """
    found = winner(study)
    if found is None:
        return None
    (best, candidate), search = found, study.search
    chosen = study.space.settings(best.params)
    trial, usual = search.trial_config(chosen, search.seed), search.usual_config(chosen)
    of_the_search = [name for name, source in trial.sources.items() if source == THE_SEARCH]
    trained = study.config_of(best)
    config = trained.changed({**{name: value_of(usual, name) for name in of_the_search}, "seed": None})
    comment = (
        f"# Trial {best.number} of study {one_line(search.name)}: {best.value!r} ({search.mode}) of "
        f"{measured(search)}, in one training with seed {best.user_attrs.get(SEED)}."
    )
    if candidate is not None:
        comment += f"\n# Trained again: {confirmed_line(confirmed(study), best.number, search.mode)}."
    if trained.n_timesteps != config.n_timesteps:
        comment += f"\n# The trial had {trained.n_timesteps} env steps; n_timesteps is that of a whole training."
    return write_whole(study.folder / "best.yml", f"{comment}\n{to_yaml(config)}")
