"""`report.html`: a study on one page that needs no network; plotly.js, which draws the figures, is inside."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from types import ModuleType
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from marl_sb3.errors import ConfigError, install_words
from marl_sb3.storage.atomic import write_whole
from marl_sb3.tuning.confirmed import confirmed, winner
from marl_sb3.tuning.report.figures import FIGURES, bare_copy, draw
from marl_sb3.tuning.report.rows import header, row
from marl_sb3.tuning.report.tables import HEADER, confirmed_rows
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial_text import measured, one_line, parameters_text, states

_HEIGHT = 480  # pixels of a figure
_MANY_DIGITS = re.compile(r"(lin_)?(-?\d*\.\d{4,}(?:e-?\d+)?)")


def html_report(study: TuneStudy) -> Path:
    """Write `report.html`: a summary, the results with fresh seeds, figures, and all trials.

    Raises:
        ConfigError: plotly is not installed; the message says how to install it.
    """
    plots, trials, found = _visualization(), study.trials, winner(study)
    best = None if found is None else found[0]
    template = Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    page = template.substitute(
        title=escape(f"study {one_line(study.search.name)}"),
        summary=_summary(study, trials, best),
        confirmed=_confirmed(study),
        figures="\n".join(_figures(plots, bare_copy(study.optuna, trials), best)),
        trials=_trials(study, trials, best),
    )
    return write_whole(study.folder / "report.html", page)


def _visualization() -> ModuleType:
    """`optuna.visualization`, which draws with plotly."""
    from optuna import visualization  # takes a second

    if not visualization.is_available():
        raise ConfigError(f"report.html needs the package plotly, which cannot be imported; {install_words('report')}")
    return visualization


# --- Tables ----------------------------------------------------------------------------------------------------------


def _summary(study: TuneStudy, trials: Sequence[FrozenTrial], best: FrozenTrial | None) -> str:
    search = study.search
    rows: list[tuple[str, object]] = [
        ("study", search.name),
        ("env", search.env),
        ("objective", measured(search)),
        ("direction", "more is better (max)" if search.mode == "max" else "less is better (min)"),
        ("trials", f"{len(trials)}: {states(trials)}" if trials else "0"),
        ("winner", "none: no trial was trained to its end" if best is None else f"trial {best.number}"),
    ]
    if best is not None:
        chosen = {name: value for name, value in study.space.settings(best.params).items() if name in best.params}
        env = f"{shlex.quote(search.env)} " if ":" in search.env else ""  # `train` imports no env that a file names
        rows += [
            ("its value", best.value),
            ("its parameters", parameters_text({name: _rounded(value) for name, value in chosen.items()})),
            ("train with them", f"python -m marl_sb3.train {env}--hparams best.yml"),
        ]
    return _table(f'<tr><th scope="row">{escape(name)}</th>{_cell(value)}</tr>' for name, value in rows)


def _confirmed(study: TuneStudy) -> str:
    """The winner compared with the preset."""
    candidates = confirmed(study)
    if not candidates:
        return _note("The best of many trials is partly luck. Not trained again with fresh seeds: see --confirm-seeds.")
    note = _note("The best trials and the preset, trained again; in brackets 95 % confidence intervals.")
    return f"{note}\n{_table([_head(HEADER), *map(_row, confirmed_rows(candidates, study.search.mode))])}"


def _trials(study: TuneStudy, trials: Sequence[FrozenTrial], best: FrozenTrial | None) -> str:
    number = None if best is None else best.number
    rows = (_row(row(study, trial), ' class="best"' if trial.number == number else "") for trial in trials)
    return _table([_head(header(study)), *rows])


def _table(rows: Iterable[str]) -> str:
    body = "\n".join(rows)
    return f"<table>\n{body}\n</table>"


def _head(names: Iterable[str]) -> str:
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    return f"<tr>{cells}</tr>"


def _row(values: Iterable[object], attributes: str = "") -> str:
    return f"<tr{attributes}>{''.join(map(_cell, values))}</tr>"


def _cell(value: object) -> str:
    return f"<td>{'' if value is None else escape(one_line(_rounded(value)))}</td>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _rounded(value: Any) -> Any:
    """Round a number to four significant digits, also as text and in a linear schedule, `lin_0.001234`."""
    if isinstance(value, str) and (match := _MANY_DIGITS.fullmatch(value)):
        return f"{match[1] or ''}{float(match[2]):.4g}"
    return float(f"{value:.4g}") if isinstance(value, float) else value


# --- Figures ---------------------------------------------------------------------------------------------------------


def _figures(plots: ModuleType, study: optuna.Study, best: FrozenTrial | None) -> Iterator[str]:
    """A section for each figure; the first one that is drawn includes plotly.js."""
    has_script = False
    for index, figure in enumerate(FIGURES):
        drawn, reason = draw(figure, plots, study, None if best is None else best.number)
        note = _note(figure.note if reason is None else f"Not drawn: {reason}.")
        yield f"<h2>{escape(figure.title)}</h2>\n{note}"
        if drawn is not None:
            html = drawn.to_html(
                config={"displaylogo": False},  # the logo is a link
                include_plotlyjs=not has_script,
                full_html=False,
                default_height=f"{drawn.layout.height or _HEIGHT}px",
                div_id=f"plot-{index}",
            )
            yield f'<div class="wide">{html}</div>'
            has_script = True
