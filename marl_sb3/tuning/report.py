"""The files of a study: `trials.csv`, `confirm.csv`, `best.yml`, and `report.html`, a page that needs no network."""

from __future__ import annotations

import csv
import io
import logging
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from optuna.trial import FrozenTrial

from marl_sb3.config import to_yaml
from marl_sb3.config.schema import value_of
from marl_sb3.config.values import counted
from marl_sb3.errors import ConfigError, install_words
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

_HEIGHT = 480  # pixels of a figure
_COLUMN, _ROW, _BEST = 'th scope="col"', 'th scope="row"', ' class="best"'
_MANY_DIGITS = re.compile(r"(lin_)?(-?\d*\.\d{4,}(?:e-?\d+)?)")


def html_report(study: TuneStudy) -> Path:
    """Write `report.html`: a summary, the results with fresh seeds, figures, and all trials.

    Raises:
        ConfigError: plotly is not installed; the message says how to install it.
    """
    from optuna import visualization  # takes a second

    if not visualization.is_available():
        raise ConfigError(f"report.html needs the package plotly, which cannot be imported; {install_words('report')}")
    trials, won = study.trials, winner(study)
    best = None if won is None else won[0]
    number = None if best is None else best.number
    template = Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    page = template.substitute(
        title=escape(f"study {one_line(study.search.name)}"),
        summary=_summary(study, trials, best),
        confirmed=_confirmed(study),
        figures="\n".join(_figures(trials, study.search.mode, number)),
        trials=_table((_cells(row(study.space, trial)) for trial in trials), header(study.space), number),
    )
    return write_whole(study.folder / "report.html", page)


def _summary(study: TuneStudy, trials: Sequence[FrozenTrial], best: FrozenTrial | None) -> str:
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
            ("its value", best.value),
            ("its parameters", parameters_text({name: _short(value) for name, value in chosen.items()})),
            ("train with them", f"python -m marl_sb3.train {env}--hparams best.yml"),
        ]
    return _table(_cells([name], _ROW) + _cells([value]) for name, value in rows)


def _confirmed(study: TuneStudy) -> str:
    """The best trials compared with the preset."""
    candidates = confirmed(study)
    if not candidates:
        return _note("The best of many trials is partly luck. Not trained again with fresh seeds: see --confirm-seeds.")
    note = _note("The best trials and the preset, trained again; in brackets 95 % confidence intervals.")
    return f"{note}\n{_table(map(_cells, confirmed_rows(candidates, study.search.mode)), HEADER)}"


def _figures(trials: Sequence[FrozenTrial], mode: str, best: int | None) -> Iterator[str]:
    """A section for each figure; the first one that is drawn includes plotly.js."""
    from marl_sb3.tuning.figures import draw_all

    has_script = False
    for index, (title, note, figure) in enumerate(draw_all(trials, mode, best)):
        yield f"<h2>{escape(title)}</h2>\n{_note(note)}"
        if figure is not None:
            html = figure.to_html(
                config={"displaylogo": False},  # the logo is a link
                include_plotlyjs=not has_script,
                full_html=False,
                default_height=f"{figure.layout.height or _HEIGHT}px",
                div_id=f"plot-{index}",
            )
            yield f'<div class="wide">{html}</div>'
            has_script = True


def _table(rows: Iterable[str], head: Sequence[str] = (), best: int | None = None) -> str:
    """A table of rows of cells; the row `best` stands out."""
    lines = [f"<tr>{_cells(head, _COLUMN)}</tr>"] if head else []
    lines += [f"<tr{_BEST if index == best else ''}>{cells}</tr>" for index, cells in enumerate(rows)]
    return "\n".join(["<table>", *lines, "</table>"])


def _cells(values: Iterable[object], tag: str = "td") -> str:
    texts = ("" if value is None else escape(one_line(_short(value))) for value in values)
    return "".join(f"<{tag}>{text}</{tag[:2]}>" for text in texts)


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _short(value: Any) -> Any:
    """Round a number to four significant digits, also as text and in a linear schedule, `lin_0.001234`."""
    if isinstance(value, str) and (match := _MANY_DIGITS.fullmatch(value)):
        return f"{match[1] or ''}{float(match[2]):.4g}"
    return rounded(value, 4)
