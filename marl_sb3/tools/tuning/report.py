"""The files of a study: `trials.csv`, `confirm.csv`, `best.yml`, and `report.html`, a page that needs no network."""

from __future__ import annotations

import csv
import io
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from marl_sb3.core.config.values import counted
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.display.page import Page, note, shorter, table
from marl_sb3.extensions.display.text import one_line
from marl_sb3.files.atomic import write_whole
from marl_sb3.runs.building import resolved
from marl_sb3.runs.files import to_yaml
from marl_sb3.startup import require_extra
from marl_sb3.tools.tuning.finals import HEADER, decide, outcome_words, race_of, shrunk_value
from marl_sb3.tools.tuning.finals import rows as race_rows
from marl_sb3.tools.tuning.population import copies_in_words, copies_table
from marl_sb3.tools.tuning.search import Search
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trial import (
    ERROR,
    OF_A_FINAL,
    PRESET,
    SEED,
    final_folder,
    header,
    parameters_text,
    rounded,
    row,
    states,
    stored_text,
    value_of,
)

_log = logging.getLogger(__name__)
_DIRECTIONS = {"max": "more is better (max)", "min": "less is better (min)"}


def write_files(study: TuneStudy) -> list[Path]:
    """Write all files of a study into its folder; without plotly, `report.html` is left out with a warning.

    Returns:
        The paths of the files.
    """
    paths = [trials_csv(study)]
    if study.search.is_population:
        paths.append(_write_csv(study.folder / "copies.csv", *copies_table(study)))
    paths += [*confirm_csv(study), *best_files(study)]
    try:
        paths.append(html_report(study))
    except ConfigError as error:
        _log.warning("no report.html: %s", error)
    return paths


def trials_csv(study: TuneStudy) -> Path:
    """Write `trials.csv`, a row for each trial; a value that a trial lacks is empty."""
    rows = [list(row(study.search, trial).values()) for trial in study.trials]
    return _write_csv(study.folder / "trials.csv", header(study.search), rows)


def confirm_csv(study: TuneStudy) -> list[Path]:
    """Write `confirm.csv`, a row for each training of a finalist or the preset; nothing if there are none."""
    rows = []
    for (candidate, index), training in sorted(study.finals.latest(*OF_A_FINAL).items()):
        if not training.state.is_finished():
            continue
        name = "preset" if candidate == PRESET else f"trial {candidate}"
        value, error = rounded(value_of(training)), stored_text(training, ERROR)
        rows.append([name, training.user_attrs.get(SEED), value, error, final_folder(candidate, index).as_posix()])
    head = ["candidate", "seed", "objective", "error", "folder"]
    return [_write_csv(study.folder / "confirm.csv", head, rows)] if rows else []


def _write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return write_whole(path, text.getvalue())


def best_files(study: TuneStudy) -> list[Path]:
    """Write `best.yml`: the settings that should be used, for `python -m marl_sb3.train --hparams best.yml`.

    It is the configuration of a whole training, and each run gets a new seed. With several objectives, each trial that
    no other one beats in all of them has a file, `best-NUMBER.yml`.

    Returns:
        The paths; empty if no trial is complete, or the finalists are not trained to their end.
    """
    decision = decide(study)
    if decision is not None:
        return [_settings_file(study, "best.yml", decision.trial, decision.sentence)]
    front = study.front() if len(study.search.objectives()) > 1 else []
    words = "No other trial beats it in all objectives."
    return [_settings_file(study, f"best-{trial.number}.yml", trial, words) for trial in front]


def _settings_file(study: TuneStudy, name: str, trial: FrozenTrial | None, words: str) -> Path:
    """Write the configuration of a whole training with a trial's settings, or the preset's."""
    search = study.search
    settings = {} if trial is None else study.settings_of(trial)
    config = resolved(search.whole_config(settings)).changed({"seed": None, "n_parallel_updates": None})
    comment = [f"Study {one_line(search.name)}: {words}"]
    if trial is not None:
        values, seed = ", ".join(f"{value:.7g}" for value in trial.values), trial.user_attrs.get(SEED)
        comment.append(f"Trial {trial.number}: {values} ({search.mode}) of {_measured(search)}, with seed {seed}.")
        trained = study.config_of(trial)
        if config.extensions:
            comment.append("Its settings have changed on the way: `extensions` has those that it had before.")
        if trained.n_timesteps != config.n_timesteps:
            words = f"The trial had {trained.n_timesteps} env steps; n_timesteps is that of a whole training."
            comment.append(words)
        if trained.stop:
            ends = " or ".join(f"{one_line(metric)} was at least {value:g}" for metric, value in trained.stop.items())
            comment.append(f"Trials ended when {ends}; a whole training does not.")
    text = "".join(f"# {line}\n" for line in comment)
    return write_whole(study.folder / name, f"{text}{to_yaml(config)}")


def _measured(search: Search) -> str:
    """How the value of a trial is measured: `sum, last of 10 evaluations of 10 episodes`."""
    evaluations, episodes = counted(search.evaluations, "evaluation"), counted(search.evaluation_episodes, "episode")
    return f"{one_line(search.objective)}, {search.over} of {evaluations} of {episodes}"


# --- report.html ------------------------------------------------------------------------------------------------------


def html_report(study: TuneStudy) -> Path:
    """Write `report.html`: a summary, the results with fresh seeds, figures, and all trials.

    Raises:
        ConfigError: plotly is not installed; the message says how to install it.
    """
    require_extra("report.html", "report")
    from marl_sb3.tools.tuning.figures import draw_all  # imports plotly

    trials, decision = study.trials, decide(study)
    best = None if decision is None else decision.trial
    number = None if best is None else best.number
    page = Page(f"study {study.search.name}")
    page.add("Summary", table(_summary(study, trials, best)))
    text = "The best trials and the preset, trained with fresh seeds. The intervals of the differences hold together; "
    text += "a trial is better if its interval lies above 0."
    if (race := race_of(study)) is None:
        page.add("Finalists", note("None: the best trials were not trained again beside the preset."))
    else:
        page.add("Finalists", note(text), table(race_rows(race), HEADER))
    for title, text, figures in draw_all(trials, study.search.objectives()[0].mode, number):
        page.add(title, note(text), page.beside(figures))
    if study.search.is_population:
        text = "Each time that a member copied another one, and what it changed then; copies.csv has it for programs."
        page.add("Copies", note(text), table(*reversed(copies_in_words(study))))
    rows = (list(row(study.search, trial).values()) for trial in trials)
    text = "The trial whose settings are used stands out. Numbers are rounded; trials.csv has all digits."
    page.add("Trials", note(text), table(rows, header(study.search), number))
    return page.write(study.folder / "report.html")


def _summary(study: TuneStudy, trials: Sequence[FrozenTrial], best: FrozenTrial | None) -> list[tuple[str, object]]:
    search, decision = study.search, decide(study)
    rows: list[tuple[str, object]] = [
        ("study", search.name),
        ("env", search.env),
        ("objective", _measured(search)),
        ("direction", ", ".join(_DIRECTIONS[objective.mode] for objective in search.objectives())),
        ("trials", f"{len(trials)}: {states(trials)}" if trials else "0"),
        ("result", outcome_words(study) or "none: no trial was trained to its end"),
    ]
    if study.completed():
        highest = study.best_trial
        likely = shrunk_value(study, highest)
        reason = "since the best of several values is partly luck"
        luck = "" if likely is None else f"; with other seeds, about {likely:.3g} is to be expected, {reason}"
        rows += [("best value", f"{shorter(value_of(highest))} of trial {highest.number}{luck}")]
    if best is not None:
        chosen = {name: value for name, value in study.space.settings(best.params).items() if name in best.params}
        rows += [("its parameters", parameters_text(chosen))]
    if best is not None and study.search.is_population:
        rows += [("its run, with its policies", study.folder_of(best).relative_to(study.folder).as_posix())]
    if decision is not None:
        env = f"{shlex.quote(search.env)} " if ":" in search.env else ""  # `train` imports no env that a file names
        rows += [("train with it", f"python -m marl_sb3.train {env}--hparams best.yml")]
    return [(name, str(value)) for name, value in rows]
