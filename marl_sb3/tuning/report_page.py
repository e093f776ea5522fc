"""A study as one page that opens without a network: Optuna's plots, with the script that draws them inside."""

from __future__ import annotations

import copy
import math
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState

from marl_sb3.errors import ConfigError
from marl_sb3.storage.atomic import write_whole
from marl_sb3.tuning.confirm import confirmed, winner
from marl_sb3.tuning.confirm_table import HEADER, confirmed_rows
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial_rows import header, measured, one_line, parameters_text, row, states

# Nothing may be loaded, whatever is in the page. Older versions of plotly.js make functions from text (unsafe-eval);
# the pictures that it saves are data: and blob:.
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top; border-bottom: 1px solid #ddd; }
.wide { overflow-x: auto; }
.wide td { white-space: nowrap; }
.best td { font-weight: bold; background: #eef5ff; }
.note { color: #666; }
"""
_HEIGHT = 480  # pixels of a plot
_LABELLED = 10  # learning curves that have colours and names
_SLICES_PER_ROW, _SLICE_HEIGHT = 3, 260


def html_report(study: TuneStudy) -> Path:
    """Write `report.html`: a summary, Optuna's plots, and all trials.

    Raises:
        ConfigError: plotly is not installed; the message says how to.
    """
    drawing = _visualization()
    trials = study.trials
    title = f"study {one_line(study.search.name)}"
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>",
        _summary(study, trials),
        _confirmed(study),
        *_plots(drawing, _bare_copy(study, trials), _winner(study)),
        _all_trials(study, trials),
        "</body>\n</html>\n",
    ]
    return write_whole(study.folder / "report.html", "\n".join(parts))


def _visualization() -> ModuleType:
    """Optuna's plots by plotly, which is imported here alone."""
    from optuna import visualization  # takes a second

    if not visualization.is_available():
        raise ConfigError(
            "report.html needs the package plotly, which cannot be imported; "
            "install it with: pip install 'marl_sb3[report]'"
        )
    return visualization


# --- Tables ----------------------------------------------------------------------------------------------------------


def _summary(study: TuneStudy, trials: Sequence[FrozenTrial]) -> str:
    search, found = study.search, winner(study)
    best = None if found is None else found[0]
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
        named = f"{shlex.quote(search.env)} " if ":" in search.env else ""  # of a file alone it is not taken
        rows += [
            ("its value", best.value),
            ("its parameters", parameters_text({name: _rounded(value) for name, value in chosen.items()})),
            ("train with them", f"python -m marl_sb3.train {named}--hparams best.yml"),
        ]
    body = "\n".join(f'<tr><th scope="row">{escape(name)}</th>{_cell(value)}</tr>' for name, value in rows)
    return f"<h2>Summary</h2>\n<table>\n{body}\n</table>"


def _confirmed(study: TuneStudy) -> str:
    """Whether the winner is better than the preset."""
    title, candidates = "<h2>Fresh seeds</h2>", confirmed(study)
    if not candidates:
        note = "The best of many trials is partly luck. Not trained again with fresh seeds: see --confirm-seeds."
        return f'{title}\n<p class="note">{note}</p>'
    note = "The best trials and the preset, trained again; in brackets 95 % confidence intervals."
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEADER)
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in confirmed_rows(candidates, study.search.mode))
    return f'{title}\n<p class="note">{note}</p>\n<table>\n<tr>{head}</tr>\n{body}\n</table>'


def _all_trials(study: TuneStudy, trials: Sequence[FrozenTrial]) -> str:
    number = _winner(study)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header(study))
    lines = [f"<tr>{head}</tr>"]
    for trial in trials:
        mark = ' class="best"' if trial.number == number else ""
        lines.append(f"<tr{mark}>{''.join(map(_cell, row(study, trial)))}</tr>")
    body = "\n".join(lines)
    note = '<p class="note">The winner stands out. Numbers are rounded; trials.csv has all digits.</p>'
    return f'<h2>Trials</h2>\n{note}\n<div class="wide">\n<table>\n{body}\n</table>\n</div>'


def _winner(study: TuneStudy) -> int | None:
    found = winner(study)
    return None if found is None else found[0].number


def _cell(value: object) -> str:
    return f"<td>{'' if value is None else escape(one_line(_rounded(value)))}</td>"


_MANY_DIGITS = re.compile(r"(lin_)?(-?\d*\.\d{4,}(?:e-?\d+)?)")


def _rounded(value: Any) -> Any:
    """A number with four significant digits, as a number or a text; so is the start of a schedule, `lin_0.001234`."""
    if isinstance(value, str) and (match := _MANY_DIGITS.fullmatch(value)):
        return f"{match[1] or ''}{float(match[2]):.4g}"
    return float(f"{value:.4g}") if isinstance(value, float) else value


# --- Plots -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plot:
    """A plot of Optuna's.

    Attributes:
        title: a heading.
        note: what it shows.
        draw: makes the figure, from `optuna.visualization`, a study, and the number of the winner.
        lacks: what a study lacks for it, in words; None if nothing.
    """

    title: str
    note: str
    draw: Callable[[ModuleType, optuna.Study, int | None], Any]
    lacks: Callable[[Sequence[FrozenTrial]], str | None]


def _plots(drawing: ModuleType, study: optuna.Study, best: int | None) -> Iterable[str]:
    """The sections of the page; plotly.js is in the first that has a figure."""
    has_script = False
    for index, plot in enumerate(_PLOTS):
        figure, why = _figure(drawing, study, best, plot)
        note = plot.note if why is None else f"Not drawn: {why}."
        yield f'<h2>{escape(plot.title)}</h2>\n<p class="note">{escape(note)}</p>'
        if figure is not None:
            html = figure.to_html(
                config={"displaylogo": False},  # it is a link
                include_plotlyjs=not has_script,
                full_html=False,
                default_height=f"{figure.layout.height or _HEIGHT}px",
                div_id=f"plot-{index}",
            )
            yield f'<div class="wide">{html}</div>'
            has_script = True


def _figure(drawing: ModuleType, study: optuna.Study, best: int | None, plot: _Plot) -> tuple[Any, str | None]:
    """A figure; or None, and why there is none."""
    why = plot.lacks(study.get_trials(deepcopy=False))
    if why is not None:
        return None, why
    try:
        figure = plot.draw(drawing, study, best)
    except Exception as error:  # a plot is not worth the page
        return None, f"{type(error).__name__}: {one_line(error)}"
    return figure.update_layout(title=None, margin_t=40), None  # the page has headings


def _bare_copy(study: TuneStudy, trials: Sequence[FrozenTrial]) -> optuna.Study:
    """The study in memory, without notes: Optuna shows them in labels, where plotly takes `<a>` for a link."""
    bare = optuna.create_study(direction=study.optuna.direction)
    for trial in trials:
        without_notes = copy.copy(trial)
        without_notes.user_attrs = {}
        bare.add_trial(without_notes)
    return bare


def _history(drawing: ModuleType, study: optuna.Study, best: int | None) -> Any:
    figure = drawing.plot_optimization_history(study).update_layout(yaxis_title="objective", xaxis_title="trial")
    figure.for_each_trace(lambda trace: trace.update(name=_HISTORY_NAMES.get(trace.name, trace.name)))
    if best is None:
        return figure
    return figure.add_scatter(
        x=[best], y=[study.trials[best].value], mode="markers", marker=_STAR, name=f"winner: trial {best}"
    )


_HISTORY_NAMES = {"Objective Value": "trial", "Best Value": "best so far"}
_STAR = {"symbol": "star", "size": 14, "color": "#d62728", "line": {"width": 1, "color": "white"}}


def _importances(drawing: ModuleType, study: optuna.Study, _: int | None) -> Any:
    with warnings.catch_warnings():
        # Optuna 4 calls it experimental; its own default there, fANOVA, needs scikit-learn.
        warnings.filterwarnings("ignore", category=ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return drawing.plot_param_importances(study, evaluator=evaluator)


def _learning_curves(drawing: ModuleType, study: optuna.Study, best: int | None) -> Any:
    """The best trials have colours and names, the others are grey; the winner is thick and on top."""
    figure = drawing.plot_intermediate_values(study)
    trials = study.get_trials(deepcopy=False)
    named = [trial.number for trial in _best_first(study, trials)[:_LABELLED]]
    places = {number: place for place, number in enumerate([best, *(n for n in named if n != best)])}
    for trace in figure.data:
        trial = trials[int(trace.name.removeprefix("Trial"))]
        pruned, won = trial.state == TrialState.PRUNED, trial.number == best
        label = f"trial {trial.number}{' (winner)' if won else ' (pruned)' if pruned else ''}"
        shown = trial.number in places
        trace.update(name=label, showlegend=shown, legendrank=1 + places.get(trial.number, 0), mode="lines+markers")
        trace.update(line_dash="dot" if pruned else "solid", line_width=5 if won else 2 if shown else 1)
        if not shown:
            trace.update(line_color="#bbb", marker_color="#bbb", marker_size=4)
    figure.data = sorted(figure.data, key=lambda trace: (bool(trace.showlegend), "winner" in trace.name))
    return figure.update_layout(xaxis_title="evaluation", yaxis_title="objective", showlegend=True)


def _best_first(study: optuna.Study, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    sign = -1.0 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1.0
    return sorted(_complete(trials), key=lambda trial: sign * (trial.value or 0.0))


def _slices(drawing: ModuleType, study: optuna.Study, best: int | None) -> Any:
    """Optuna's plots in rows that fit the page, and a star at the winner."""
    figure = drawing.plot_slice(study)
    names = sorted({name for trial in _complete(study.get_trials(deepcopy=False)) for name in trial.params})
    columns = min(_SLICES_PER_ROW, len(names))
    rows = math.ceil(len(names) / columns)
    width, height = 1 / columns, 1 / rows
    layout: dict[str, Any] = {}
    for index, name in enumerate(names):
        row, column = divmod(index, columns)
        axis = "" if index == 0 else str(index + 1)
        layout[f"xaxis{axis}"] = {"domain": [column * width + 0.03, (column + 1) * width - 0.02], "title": name}
        top = 1 - row * height
        layout[f"yaxis{axis}"] = {"domain": [top - height * 0.72, top], "showticklabels": column == 0, "title": ""}
        if best is not None and name in study.trials[best].params:
            x, y = study.trials[best].params[name], study.trials[best].value
            star = {"x": [x], "y": [y], "mode": "markers", "marker": _STAR, "name": f"winner: trial {best}"}
            figure.add_scatter(xaxis=f"x{axis}", yaxis=f"y{axis}", showlegend=False, **star)
    return figure.update_layout(width=None, height=80 + rows * _SLICE_HEIGHT, **layout)


def _complete(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Those that Optuna draws."""
    return [t for t in trials if t.state == TrialState.COMPLETE and t.value is not None and math.isfinite(t.value)]


def _no_complete_trial(trials: Sequence[FrozenTrial]) -> str | None:
    return None if _complete(trials) else "no trial was trained to its end"


def _nothing_to_compare(trials: Sequence[FrozenTrial]) -> str | None:
    complete = _complete(trials)
    if len(complete) < 2:
        return "fewer than two trials were trained to their end"
    if len({name for trial in complete for name in trial.params}) < 2:
        return "there is one parameter only"
    return "all trials have the same value" if len({trial.value for trial in complete}) == 1 else None


def _no_evaluation(trials: Sequence[FrozenTrial]) -> str | None:
    drawn = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
    found = any(trial.intermediate_values for trial in trials if trial.state in drawn)
    return None if found else "no trial that did not fail was evaluated"


def _none_started(trials: Sequence[FrozenTrial]) -> str | None:
    return None if any(trial.datetime_start for trial in trials) else "no trial was started"


_PLOTS = (
    _Plot(
        "Optimization history",
        "The value of each trial, and the best so far. The star is the winner.",
        _history,
        _no_complete_trial,
    ),
    _Plot(
        "Learning curves",
        f"The objective at each evaluation: the best {_LABELLED} in colour, the winner thick; dotted where the trial "
        "was given up (pruned). Pointing at a line names its trial.",
        _learning_curves,
        _no_evaluation,
    ),
    _Plot(
        "Parameter importances",
        "What distinguishes the best tenth of the trials from the others, by PED-ANOVA (Watanabe et al., IJCAI 2023).",
        _importances,
        _nothing_to_compare,
    ),
    _Plot(
        "Parallel coordinates",
        "A line for each trial that was trained to its end, across its parameters.",
        lambda drawing, study, _: drawing.plot_parallel_coordinate(study),
        _no_complete_trial,
    ),
    _Plot(
        "Slices",
        "The value over each parameter; the darker, the later the trial. The star is the winner.",
        _slices,
        _no_complete_trial,
    ),
    _Plot(
        "Timeline",
        "When each trial ran, and what became of it.",
        lambda drawing, study, _: drawing.plot_timeline(study),
        _none_started,
    ),
)
