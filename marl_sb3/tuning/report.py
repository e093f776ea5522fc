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

from marl_sb3.config import to_yaml
from marl_sb3.config.schema import value_of
from marl_sb3.config.values import counted
from marl_sb3.display.page import Html, Page, note, require_plotly, shorter, table
from marl_sb3.errors import ConfigError
from marl_sb3.storage.atomic import write_whole
from marl_sb3.tuning.confirmed import (
    HEADER,
    candidate_name,
    confirmed,
    confirmed_line,
    confirmed_rows,
    outcomes,
    winner,
)
from marl_sb3.tuning.search import THE_SEARCH, Search
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial import SEED, header, one_line, parameters_text, rounded, row, states

_log = logging.getLogger(__name__)


def write_files(study: TuneStudy) -> list[Path]:
    """Write all files of a study into its folder; without plotly, `report.html` is left out with a warning.

    Returns:
        The paths of the files.
    """
    paths = [trials_csv(study), confirm_csv(study), best_yml(study)]
    try:
        paths.append(html_report(study))
    except ConfigError as error:
        _log.warning("no report.html: %s", error)
    return [path for path in paths if path is not None]


def trials_csv(study: TuneStudy) -> Path:
    """Write `trials.csv`, a row for each trial; a value that a trial lacks is empty."""
    rows = [row(study.space, trial) for trial in study.trials]
    return _write_csv(study.folder / "trials.csv", header(study.space), rows)


def confirm_csv(study: TuneStudy) -> Path | None:
    """Write `confirm.csv`, a row for each training with a fresh seed; None if there are none."""
    rows = [
        [candidate_name(trial), each.seed, rounded(each.objective), one_line(each.error or ""), folder.as_posix()]
        for trial, folder, each in outcomes(study)
    ]
    head = ["candidate", "seed", "objective", "error", "folder"]
    return _write_csv(study.folder / "confirm.csv", head, rows) if rows else None


def _write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return write_whole(path, text.getvalue())


def best_yml(study: TuneStudy) -> Path | None:
    """Write `best.yml`: the winner's configuration, for `python -m marl_sb3.train --hparams best.yml`.

    It is the trial's configuration without what made it a trial: each run gets a new seed, and env steps, evaluations
    and checkpoints are those of the preset or of `--set`. Stop conditions, which end trials, are left out.

    Returns:
        The path; None if no trial is complete, and nothing is written.
    """
    won = winner(study)
    if won is None:
        return None
    (best, candidate), search = won, study.search
    chosen = study.space.settings(best.params)
    trial, usual = search.trial_config(chosen, search.seed), search.config(chosen)
    of_the_search = [name for name, source in trial.sources.items() if source.label == THE_SEARCH]
    trained = study.config_of(best)
    config = trained.changed({**{name: value_of(usual, name) for name in of_the_search}, "seed": None, "stop": {}})
    comment = (
        f"# Trial {best.number} of study {one_line(search.name)}: {best.value:.7g} ({search.mode}) of "
        f"{_measured(search)}, in one training run with seed {best.user_attrs.get(SEED)}."
    )
    if candidate is not None:
        comment += f"\n# Trained again: {confirmed_line(confirmed(study), best.number, search.mode)}."
    if trained.n_timesteps != config.n_timesteps:
        comment += f"\n# The trial had {trained.n_timesteps} env steps; n_timesteps is that of a whole training."
    if trained.stop:
        ends = " or ".join(f"{one_line(metric)} was at least {value:g}" for metric, value in trained.stop.items())
        comment += f"\n# Trials ended when {ends}; a whole training does not."
    return write_whole(study.folder / "best.yml", f"{comment}\n{to_yaml(config)}")


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
    require_plotly("report.html")
    from marl_sb3.tuning.figures import draw_all  # imports plotly

    trials, won = study.trials, winner(study)
    best = None if won is None else won[0]
    number = None if best is None else best.number
    page = Page(f"study {study.search.name}")
    page.add("Summary", table(_summary(study, trials, best)))
    page.add("Fresh seeds", *_confirmed(study))
    for title, text, figure in draw_all(trials, study.search.mode, number, _value_of):
        page.add(title, note(text), *([] if figure is None else [page.figure(figure)]))
    rows = (row(study.space, trial) for trial in trials)
    text = "The winner stands out. Numbers are rounded; trials.csv has all digits."
    page.add("Trials", note(text), table(rows, header(study.space), number))
    return page.write(study.folder / "report.html")


def _value_of(trial: FrozenTrial) -> float | None:
    """The value of the first objective."""
    return trial.values[0] if trial.values else None


def _summary(study: TuneStudy, trials: Sequence[FrozenTrial], best: FrozenTrial | None) -> list[tuple[str, object]]:
    search = study.search
    rows: list[tuple[str, object]] = [
        ("study", search.name),
        ("env", search.env),
        ("objective", _measured(search)),
        ("direction", "more is better (max)" if search.mode == "max" else "less is better (min)"),
        ("trials", f"{len(trials)}: {states(trials)}" if trials else "0"),
        ("winner", "none: no trial was trained to its end" if best is None else f"trial {best.number}"),
    ]
    if best is not None:
        chosen = {name: value for name, value in study.space.settings(best.params).items() if name in best.params}
        env = f"{shlex.quote(search.env)} " if ":" in search.env else ""  # `train` imports no env that a file names
        rows += [
            ("its value", shorter(_value_of(best))),
            ("its parameters", parameters_text(chosen)),
            ("train with them", f"python -m marl_sb3.train {env}--hparams best.yml"),
        ]
    return [(name, str(value)) for name, value in rows]


def _confirmed(study: TuneStudy) -> list[Html]:
    """The best trials compared with the preset."""
    candidates = confirmed(study)
    if not candidates:
        return [
            note("The best of many trials is partly luck. Not trained again with fresh seeds: see --confirm-seeds.")
        ]
    text = "The best trials and the preset, trained again; in brackets 95 % confidence intervals."
    return [note(text), table(confirmed_rows(candidates, study.search.mode), HEADER)]
