"""The figures of a search's `report.html`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from optuna import create_study
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import FrozenTrial, TrialState, create_trial
from optuna.visualization import plot_param_importances
from plotly.graph_objects import Figure

from marl_sb3.extensions.display.page import words
from marl_sb3.extensions.display.text import one_line
from marl_sb3.results.drawing import COLORS, GREY, PAGE_LAYOUT
from marl_sb3.tools.tuning import trial as key
from marl_sb3.tools.tuning.trial import lineage, trial_line, value_of, value_text

_LAYOUT = {**PAGE_LAYOUT, "margin": {"t": 20, "r": 20, "b": 60}, "hovermode": "closest"}
_AXES = {"gridcolor": GREY, "zeroline": False}
_N_NAMED = 10  # learning curves with colours and names
_LEAST_TO_COMPARE = 30  # trials; of fewer, the importance of a parameter is mostly chance
_SLICE_HEIGHT = 280  # pixels
_FEW_NUMBERS = 12  # on an axis of whole numbers, on which each has its tick
_BEST = 0.25  # the share of the trials that importances set apart
_LONGEST_LABEL = 18  # characters
_NONE_COMPLETE = "no trial was trained to its end"
_BLUE, _RED, _GREY = *COLORS[:2], "#999"
_STAR = {"symbol": "star", "size": 14, "color": _RED, "line": {"width": 1, "color": "white"}}
_STATES = dict(zip(("COMPLETE", "FAIL", "RUNNING", "PRUNED"), (_BLUE, _RED, *COLORS[2:5:2]), strict=True))
_OF_BEST = {"color": _RED, "width": 3}  # the line of the best member's run


@dataclass(frozen=True)
class _Drawing:
    """What the figures show; see `draw_all`."""

    trials: Sequence[FrozenTrial]
    mode: str
    winner: int | None
    values: dict[int, float]  # the values of the complete trials that have a finite one, by number, best first
    pruned: dict[int, float]  # the values of the pruned trials at their last evaluations, by number
    of_best: set[int]  # of a population, the trials that the run of its best member went through


def draw_all(trials: Sequence[FrozenTrial], mode: str, winner: int | None) -> Iterator[tuple[str, str, list[Any]]]:
    """Draw all figures of a study.

    Args:
        trials: all trials of the study, ordered by number.
        mode: whether the objective is maximized, `max`, or minimized, `min`.
        winner: the number of the winner; None if there is none.

    Returns:
        For each figure its title, a note on what it shows or why it cannot be drawn, and Plotly's figures, which stand
        beside each other; none if it cannot be drawn.
    """
    finite = [each for each in trials if (value := value_of(each)) is not None and math.isfinite(value)]
    complete = [trial for trial in finite if trial.state == TrialState.COMPLETE]
    sign = -1.0 if mode == "max" else 1.0
    complete.sort(key=lambda trial: (sign * trial.values[0], trial.number))
    values = {trial.number: trial.values[0] for trial in complete}
    pruned = {trial.number: trial.values[0] for trial in finite if trial.state == TrialState.PRUNED}
    is_population = any(key.MEMBER in trial.user_attrs for trial in trials)
    latest = max(complete, key=lambda trial: trial.user_attrs.get(key.GENERATION, 0), default=None)  # the best of those
    of_best = {trial.number for trial in lineage(latest, trials)} if latest is not None else set()
    drawing = _Drawing(trials, mode, winner, values, pruned, of_best)
    for title, text, draw in _OF_POPULATIONS if is_population else _FIGURES:
        try:
            figure = draw(drawing)
        except Exception as error:  # the page is useful without this figure
            figure = f"{type(error).__name__}: {one_line(error)}"
        if isinstance(figure, str):
            yield title, f"Not drawn: {figure}.", []
        else:
            each = figure if isinstance(figure, list) else [figure]
            yield title, text, [one.update_layout(_LAYOUT).update_xaxes(_AXES).update_yaxes(_AXES) for one in each]


# --- Figures: each is one or several of Plotly's, or says why it cannot be drawn -------------------------------------


def _history(drawing: _Drawing) -> Any:
    if not drawing.values:
        return _NONE_COMPLETE
    figure = _values_over("trial", drawing, {trial.number: trial.number for trial in drawing.trials})
    figure.update_traces(marker_colorscale=[(0, _BLUE), (1, _BLUE)])  # its axis says which is later
    numbers, values = zip(*sorted(drawing.values.items()), strict=True)
    so_far = list(accumulate(values, max if drawing.mode == "max" else min))
    line = {"shape": "hv", "color": _GREY}
    figure.add_scatter(x=numbers, y=so_far, mode="lines", line=line, name="best so far", zorder=-1)
    return figure.update_xaxes(_whole(len(drawing.trials)))


def _learning_curves(drawing: _Drawing) -> Any:
    """The best trials with colours and names, the winner thick and on top; all others are grey behind them."""
    shown = {
        trial.number: trial for trial in drawing.trials if trial.intermediate_values and trial.state.name != "FAIL"
    }
    if not shown:
        return "no trial that did not fail was evaluated"
    named = [number for number in [*drawing.values][:_N_NAMED] if number in shown and number != drawing.winner]
    named += [drawing.winner] if drawing.winner in shown else []
    colors = [color for color in COLORS[:-1] if color != _RED]  # which is the winner's; others are grey
    last = max(evaluation for trial in shown.values() for evaluation in trial.intermediate_values)
    figure = _axes("evaluation", "objective").update_xaxes(_whole(last))
    curves = {
        number: (f"trial {number} ({trial.state.name})", sorted(trial.intermediate_values.items()))
        for number, trial in shown.items()
    }
    others = [curve for number, curve in curves.items() if number not in named]
    marks = {"mode": "lines+markers", "marker": {"size": 4}}
    _add_curves(figure, others, line={"color": _GREY, "width": 1}, opacity=0.5, name="others", **marks)
    for rank, number in enumerate(named, start=1):
        won = number == drawing.winner
        style = {"name": f"trial {number}{' (winner)' if won else ''}", "legendrank": 0 if won else rank}
        dash = "dash" if rank >= len(colors) else "solid"  # colours come again
        line = {"width": 5, "color": _RED} if won else {"width": 2, "color": colors[rank % len(colors)], "dash": dash}
        _add_curves(figure, [curves[number]], line=line, **style, **marks)
    return figure


def _importances(drawing: _Drawing) -> Any:
    if len(drawing.values) < _LEAST_TO_COMPARE:
        return f"fewer than {_LEAST_TO_COMPARE} trials were trained to their end, so that it would show chance"
    if len(set(drawing.values.values())) == 1:
        return "all trials have the same value"
    complete = create_study(direction="maximize" if drawing.mode == "max" else "minimize")
    for number, value in drawing.values.items():
        trial = drawing.trials[number]
        params: dict[str, Any] = {words(name): each for name, each in trial.params.items()}
        distributions = {str(words(name)): each for name, each in trial.distributions.items()}
        complete.add_trial(create_trial(params=params, distributions=distributions, value=value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a parameter that few trials have
        figure = plot_param_importances(complete, PedAnovaImportanceEvaluator(target_quantile=_BEST))
    figure.update_traces(marker_color=_BLUE).update_yaxes(title="", automargin=True).update_xaxes(title="importance")
    return figure.update_layout(title="", height=130 + 28 * len(figure.data[0].y), bargap=0.4)


def _lineage(drawing: _Drawing) -> Any:
    """A line from each trial to the one whose run it goes on from; dotted if that was another member's."""
    shown = {each.number: each for each in drawing.trials if each.values and key.ENV_STEPS in each.user_attrs}
    if not shown:
        return _NONE_COMPLETE
    figure = _axes("env steps", "objective")
    points = {number: (each.user_attrs[key.ENV_STEPS], each.values[0]) for number, each in shown.items()}
    lines = {
        number: ("", [points[each.user_attrs[key.PARENT]], points[number]])
        for number, each in shown.items()
        if key.PARENT in each.user_attrs
    }
    copied = {number for number in lines if key.COPIED in shown[number].user_attrs}
    dotted = {"color": _BLUE, "width": 1, "dash": "dot"}
    for name, numbers, line in (
        ("a member goes on", lines.keys() - copied, {"color": _GREY, "width": 1}),
        ("a member copies another one", copied, dotted),
        ("the run of the best member", lines.keys() & drawing.of_best, _OF_BEST),
    ):
        _add_curves(figure, [lines[each] for each in sorted(numbers)], line=line, name=name, hoverinfo="skip")
    x, y = zip(*points.values(), strict=True)
    text = [words(trial_line(each)) for each in shown.values()]
    marker = {"color": [_RED if number in drawing.of_best else _BLUE for number in shown], "size": 6}
    return figure.add_scatter(x=x, y=y, mode="markers", marker=marker, text=text, hoverinfo="text", name="trial")


def _schedules(drawing: _Drawing) -> Any:
    """A part for each parameter: its value in each trial, from the first env step of the trial to its last."""
    shown = [each for each in drawing.trials if key.ENV_STEPS in each.user_attrs and each.params]
    names = sorted({name for trial in shown for name in trial.params})
    if not names:
        return _NONE_COMPLETE
    figures = list[Any]()
    ends = {trial.number: trial.user_attrs[key.ENV_STEPS] for trial in shown}
    for name in names:
        figure = _axes("env steps", words(name)).update_layout(showlegend=False, height=_SLICE_HEIGHT)
        values, axis = _axis(shown, name)
        lines = dict[int, tuple[str, list[tuple[int, Any]]]]()
        for trial, value in zip(shown, values, strict=True):
            start = ends.get(trial.user_attrs.get(key.PARENT, -1), 0)
            lines[trial.number] = ("", [(start, value), (ends[trial.number], value)])
        for label, numbers, line in (
            ("others", lines.keys() - drawing.of_best, {"color": _GREY, "width": 1}),
            ("the run of the best member", lines.keys() & drawing.of_best, _OF_BEST),
        ):
            _add_curves(figure, [lines[each] for each in sorted(numbers)], line=line, name=label)
        figures.append(figure.update_yaxes(**axis, automargin=True))
    return figures


def _slices(drawing: _Drawing) -> Any:
    """A figure for each parameter; all have the same scale of values."""
    if not drawing.values:
        return _NONE_COMPLETE
    names, figures = sorted({name for number in drawing.values for name in drawing.trials[number].params}), list[Any]()
    shown = {**drawing.values, **drawing.pruned}
    low, high = min(shown.values()), max(shown.values())
    margin = 0.08 * (high - low) or 1.0
    for name in names:
        trials = [drawing.trials[number] for number in sorted(shown) if name in drawing.trials[number].params]
        places, axis = _axis(trials, name)
        x = {trial.number: place for trial, place in zip(trials, places, strict=True)}
        figure = _values_over(words(name), drawing, x).update_layout(showlegend=False, height=_SLICE_HEIGHT)
        figures.append(figure.update_xaxes(**axis).update_yaxes(range=[low - margin, high + margin]))
    return figures


def _timeline(drawing: _Drawing) -> Any:
    """A bar for each trial from its start to its end; a trial that runs ends where the last news is."""
    started = [trial for trial in drawing.trials if trial.datetime_start is not None]
    if not started:
        return "no trial was started"
    news = max(time for trial in started for time in (trial.datetime_start, trial.datetime_complete) if time)
    figure = _axes("local time", "trial").update_layout(barmode="overlay")
    for state, color in _STATES.items():
        trials = [trial for trial in started if trial.state.name == state]
        starts = [trial.datetime_start or news for trial in trials]
        ends = [trial.datetime_complete or news for trial in trials]
        seconds = [(end - start).total_seconds() for start, end in zip(starts, ends, strict=True)]
        text, x = [f"{each:.4g} s" for each in seconds], [1000 * each for each in seconds]
        y, marker = [trial.number for trial in trials], {"color": color, "line": {"width": 0}}
        if trials:
            style = {"name": state, "orientation": "h", "width": 0.8, "marker": marker}
            figure.add_bar(x=x, base=starts, y=y, hovertext=text, **style)
    return figure.update_xaxes(type="date", nticks=5).update_yaxes(autorange="reversed", **_whole(len(drawing.trials)))


# --- What several of them draw ----------------------------------------------------------------------------------------


def _values_over(title: str, drawing: _Drawing, x: Mapping[int, Any]) -> Any:
    """The values of trials over what they have at `x`, by number: rings are pruned ones, the star is the winner."""
    figure, cmax = _axes(title, "objective"), len(drawing.trials)
    for name, values, symbol in (("trial", drawing.values, "circle"), ("pruned", drawing.pruned, "circle-open")):
        numbers = [number for number in sorted(values) if number in x]
        color = {"color": numbers, "colorscale": [(0, "#bbb"), (1, _BLUE)], "cmin": 0, "cmax": cmax, "symbol": symbol}
        places, y = [x[number] for number in numbers], [values[number] for number in numbers]
        text = [f"trial {number}" for number in numbers]
        if numbers:
            figure.add_scatter(x=places, y=y, text=text, mode="markers", marker=color, name=name)
    if drawing.winner is not None and drawing.winner in x:
        place, value, name = x[drawing.winner], drawing.values.get(drawing.winner), f"winner: trial {drawing.winner}"
        figure.add_scatter(x=[place], y=[value], mode="markers", marker=_STAR, name=name)
    return figure


def _add_curves(figure: Any, curves: Iterable[tuple[str, Iterable[tuple[Any, Any]]]], **style: Any) -> None:
    """Add curves as one trace with gaps: plotly takes a minute for a trace of each of 2,000 trials.

    Args:
        curves: of each a text, and its points.
    """
    points = [(*point, text) for text, curve in curves for point in (*curve, (None, None))]
    x, y, text = zip(*points, strict=True) if points else ((), (), ())
    figure.add_scatter(**{"x": x, "y": y, "text": text, "mode": "lines", **style})


def _axis(trials: Sequence[FrozenTrial], name: str) -> tuple[list[float], dict[str, Any]]:
    """Where the values of a parameter are on its axis; choices are at 0, 1, ... in their order."""
    values = [trial.params[name] for trial in trials]
    domain: Any = trials[-1].distributions[name]
    if isinstance(domain, CategoricalDistribution):
        places = {value_text(value): place for place, value in enumerate(domain.choices)}
        labels = [words(label if len(label) <= _LONGEST_LABEL else f"{label[:_LONGEST_LABEL]}...") for label in places]
        ticks = {"tickvals": [*places.values()], "ticktext": labels, "range": [-0.5, len(domain.choices) - 0.5]}
        return [places[value_text(value)] for value in values], ticks
    if domain.log:  # with so few ticks that their labels have room, which plotly's own have not within a decade
        ticks = {"tickvals": [float(f"{each:.2g}") for each in np.geomspace(min(values), max(values), 4)]}
        return values, {"type": "log", "tickformat": "~g", **ticks}
    return values, _whole(domain.high - domain.low) if isinstance(domain, IntDistribution) else {}


def _whole(extent: float) -> dict[str, Any]:
    """An axis of whole numbers, which has no ticks at fractions."""
    return {"dtick": 1} if extent <= _FEW_NUMBERS else {}


def _axes(x: str, y: str) -> Any:
    return Figure(layout={"xaxis": {"title": x}, "yaxis": {"title": y}, "showlegend": True})


_CURVES = f"The objective at each evaluation: the best {_N_NAMED} in colour, the winner thick. A line tells its trial."
_IMPORTANCES = (
    "How far each parameter sets the best quarter of the trials apart, as a share of all, by Optuna's PED-ANOVA "
    "(Watanabe et al., IJCAI 2023). Parameters that do not matter have bars, too, by chance."
)
_STARS = "A star is the winner, if a trial has won."
_PRUNED = "Rings are pruned trials, at their last evaluation."
_SLICES = f"The value over each parameter; the bluer, the later the trial. {_STARS} {_PRUNED}"
_LINEAGE = (
    "The value of each member after each generation. Where a member copies another one, a dotted line leads from the "
    "run that was copied to what became of it."
)
_SCHEDULES = "The settings of all members over their env steps; those of the best member's run are thick."
_FIGURES: tuple[tuple[str, str, Callable[[_Drawing], Any]], ...] = (  # title, note, and what draws it
    (
        "Optimization history",
        f"The value of each trial, and the best so far. {_STARS} {_PRUNED}",
        _history,
    ),
    ("Learning curves", _CURVES, _learning_curves),
    ("Parameter importances", _IMPORTANCES, _importances),
    ("Slices", _SLICES, _slices),
    ("Timeline", "When each trial ran, and what became of it.", _timeline),
)
_OF_POPULATIONS = (
    ("Who copied whom", _LINEAGE, _lineage),
    ("Settings over time", _SCHEDULES, _schedules),
    _FIGURES[-1],
)
