"""The files of a study: `trials.csv`, `confirm.csv`, `best.yml`, and `report.html` by `page`."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_sb3.config import to_yaml
from marl_sb3.config.schema import value_of
from marl_sb3.errors import ConfigError
from marl_sb3.storage.atomic import write_whole
from marl_sb3.tuning.confirmed import confirmed, outcomes, winner
from marl_sb3.tuning.report.page import html_report
from marl_sb3.tuning.report.rows import header, rounded, row
from marl_sb3.tuning.report.tables import confirmed_line
from marl_sb3.tuning.search import THE_SEARCH
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial_attributes import SEED
from marl_sb3.tuning.trial_text import measured, one_line

_log = logging.getLogger(__name__)


def write_files(study: TuneStudy) -> list[Path]:
    """Write all files of a study into its folder; without plotly, `report.html` is left out with a warning.

    Returns:
        The paths of the files.
    """
    files = [trials_csv(study), confirm_csv(study), best_yml(study)]
    try:
        files.append(html_report(study))
    except ConfigError as error:
        _log.warning("no report.html: %s", error)
    return [path for path in files if path is not None]


def trials_csv(study: TuneStudy) -> Path:
    """Write `trials.csv`, a row for each trial; a value that a trial lacks is empty."""
    return _write_csv(study.folder / "trials.csv", header(study), [row(study, trial) for trial in study.trials])


def confirm_csv(study: TuneStudy) -> Path | None:
    """Write `confirm.csv`, a row for each training with a fresh seed; None if there are none."""
    rows = [
        [
            name,
            outcome["seed"],
            rounded(outcome.get("objective")),
            one_line(outcome.get("error", "")),
            folder.as_posix(),
        ]
        for name, folder, outcome in outcomes(study)
    ]
    if not rows:
        return None
    return _write_csv(study.folder / "confirm.csv", ["candidate", "seed", "objective", "error", "folder"], rows)


def _write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return write_whole(path, text.getvalue())


def best_yml(study: TuneStudy) -> Path | None:
    """Write `best.yml`: the winner's configuration, for `python -m marl_sb3.train --hparams best.yml`.

    It is the trial's configuration without what made it a trial: each run gets a new seed, and env steps, evaluations
    and checkpoints are those of the preset or of `--set`. Stop conditions, which end trials, are left out.

    Returns:
        The path; None if no trial is complete, and nothing is written.
    """
    found = winner(study)
    if found is None:
        return None
    (best, candidate), search = found, study.search
    chosen = study.space.settings(best.params)
    trial, usual = search.trial_config(chosen, search.seed), search.usual_config(chosen)
    of_the_search = [name for name, source in trial.sources.items() if source.label == THE_SEARCH]
    trained = study.config_of(best)
    of_trials = {**{name: value_of(usual, name) for name in of_the_search}, "seed": None, "stop": {}}
    config = trained.changed(of_trials)
    comment = (
        f"# Trial {best.number} of study {one_line(search.name)}: {best.value:.7g} ({search.mode}) of "
        f"{measured(search)}, in one training run with seed {best.user_attrs.get(SEED)}."
    )
    if candidate is not None:
        comment += f"\n# Trained again: {confirmed_line(confirmed(study), best.number, search.mode)}."
    if trained.n_timesteps != config.n_timesteps:
        comment += f"\n# The trial had {trained.n_timesteps} env steps; n_timesteps is that of a whole training."
    if trained.stop:
        ends = " or ".join(f"{one_line(metric)} was at least {value:g}" for metric, value in trained.stop.items())
        comment += f"\n# Trials ended when {ends}; a whole training does not."
    return write_whole(study.folder / "best.yml", f"{comment}\n{to_yaml(config)}")
