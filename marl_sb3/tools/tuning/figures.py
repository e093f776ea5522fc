"""The figures of a search's `report.html`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from optuna import create_study
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState, create_trial
from plotly.graph_objects import Figure

from marl_sb3.extensions.display.page import words
from marl_sb3.extensions.display.text import one_line
from marl_sb3.results.drawing import COLORS, GREY, PAGE_LAYOUT
from marl_sb3.tools.tuning import trial as key
from marl_sb3.tools.tuning.trial import trial_line, value_text

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


@dataclass(frozen=True)
class _Drawing:
    """What the figures show; see `draw_all`."""

    trials: Sequence[FrozenTrial]
    mode: str
    winner: int | None
    values: dict[int, float]  # the values of the complete trials that have a finite one, by number, best first
    pruned: dict[int, float]  # the values of the pruned trials at their last evaluations, by number

    @property
    def complete(self) -> list[FrozenTrial]:
        """The trials that have a value, in the order of `values`."""
        return [self.trials[number] for number in self.values]

    def lineage(self) -> list[FrozenTrial]:
        """The best trial of the latest generation, then the trials that its run continues, the latest first."""
        best_first = self.complete
        found = [max(best_first, key=lambda trial: trial.user_attrs[key.GENERATION])] if best_first else []  # the first
        while found and (parent := found[-1].user_attrs.get(key.PARENT)) is not None:
            found.append(self.trials[parent])
        return found

    def star(self, x: Any) -> dict[str, Any]:
        """A trace that marks the winner's value at `x`."""
        name = f"winner: trial {self.winner}"
        return {"x": [x], "y": [self.values.get(self.winner or 0)], "mode": "markers", "marker": _STAR, "name": name}


def draw_all(
    trials: Sequence[FrozenTrial], mode: str, winner: int | None, value_of: Callable[[FrozenTrial], float | None]
) -> Iterator[tuple[str, str, list[Any]]]:
    """Draw all figures of a study.

    Args:
        trials: all trials of the study, ordered by number.
        mode: whether the objective is maximized, `max`, or minimized, `min`.
        winner: the number of the winner; None if there is none.
        value_of: returns the value of a complete trial, and that of a pruned one's last evaluation.

    Returns:
        For each figure its title, a note on what it shows or why it cannot be drawn, and Plotly's figures, which stand
        beside each other; none if it cannot be drawn.
    """

    def finite_of(state: TrialState) -> dict[int, float]:
        found = {trial.number: value_of(trial) for trial in trials if trial.state == state}
        return {number: value for number, value in found.items() if value is not None and math.isfinite(value)}

    finite = finite_of(TrialState.COMPLETE)
    sign = -1.0 if mode == "max" else 1.0
    best_first = sorted(finite, key=lambda number: (sign * finite[number], number))
    values = {number: finite[number] for number in best_first}
    drawing = _Drawing(trials, mode, winner, values, finite_of(TrialState.PRUNED))
    is_population = any(key.MEMBER in trial.user_attrs for trial in trials)
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
    numbers, values = zip(*sorted(drawing.values.items()), strict=True)
    so_far = list(accumulate(values, max if drawing.mode == "max" else min))
    figure = _axes("trial", "objective").update_xaxes(_whole(len(drawing.trials)))
    figure.add_scatter(x=numbers, y=so_far, mode="lines", line={"shape": "hv", "color": _GREY}, name="best so far")
    figure.add_scatter(x=numbers, y=values, mode="markers", marker={"color": _BLUE}, name="trial")
    if drawing.pruned:
        x, y = [*drawing.pruned], [*drawing.pruned.values()]
        figure.add_scatter(x=x, y=y, mode="markers", marker={"color": _BLUE, "symbol": "circle-open"}, name="pruned")
    return figure if drawing.winner is None else figure.add_scatter(**drawing.star(drawing.winner))


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
    others = [trial for number, trial in shown.items() if number not in named]
    _add_curves(figure, others, line={"color": _GREY, "width": 1}, opacity=0.5, name="others")
    for rank, number in enumerate(named, start=1):
        won = number == drawing.winner
        style = {"name": f"trial {number}{' (winner)' if won else ''}", "legendrank": 0 if won else rank}
        line = {"width": 5, "color": _RED} if won else {"width": 2, "color": colors[rank % len(colors)]}
        _add_curves(figure, [shown[number]], line=line, **style)
    return figure


def _add_curves(figure: Any, trials: Sequence[FrozenTrial], **style: Any) -> None:
    """Add the curves of trials as one trace with gaps: plotly takes a minute for a trace of each of 2,000 trials."""
    curves = [[*sorted(trial.intermediate_values.items()), (None, None)] for trial in trials]
    text = [f"trial {t.number} ({t.state.name})" for t, curve in zip(trials, curves, strict=True) for _ in curve]
    x, y = zip(*(point for curve in curves for point in curve), strict=True) if curves else ((), ())
    figure.add_scatter(x=x, y=y, text=text, mode="lines+markers", marker={"size": 4}, **style)


def _importances(drawing: _Drawing) -> Any:
    if len(drawing.values) < _LEAST_TO_COMPARE:
        return f"fewer than {_LEAST_TO_COMPARE} trials were trained to their end, so that it would show chance"
    if len(set(drawing.values.values())) == 1:
        return "all trials have the same value"
    of_complete = create_study(direction="maximize" if drawing.mode == "max" else "minimize")
    for trial in drawing.complete:
        value = drawing.values[trial.number]
        of_complete.add_trial(create_trial(params=trial.params, distributions=trial.distributions, value=value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a parameter that few trials have
        found = get_param_importances(of_complete, evaluator=PedAnovaImportanceEvaluator(target_quantile=_BEST))
    names, bars = [words(name) for name in reversed(found)], [*reversed(found.values())]
    figure = _axes("importance", "").update_layout(height=130 + 28 * len(names), bargap=0.4, showlegend=False)
    figure.add_bar(x=bars, y=names, orientation="h", name="importance", marker={"color": _BLUE})
    return figure.update_xaxes(rangemode="tozero").update_yaxes(automargin=True)


def _lineage(drawing: _Drawing) -> Any:
    """A line from each trial to the one whose run it goes on from; dotted if that was another member's."""
    shown = {each.number: each for each in drawing.trials if each.values and key.ENV_STEPS in each.user_attrs}
    if not shown:
        return _NONE_COMPLETE
    figure = _axes("env steps", "objective")
    styles = {
        "a member goes on": {"color": _GREY, "width": 1},
        "a member copies another one": {"color": _BLUE, "width": 1, "dash": "dot"},
        "the run of the best member": {"color": _RED, "width": 3},
    }
    of_best = {trial.number for trial in drawing.lineage()}
    later = [each for each in shown.values() if key.PARENT in each.user_attrs]
    drawn = (
        [each for each in later if key.COPIED not in each.user_attrs],
        [each for each in later if key.COPIED in each.user_attrs],
        [each for each in later if each.number in of_best],
    )
    for (name, line), those in zip(styles.items(), drawn, strict=True):
        x, y = [], []
        for before, after in ((shown[each.user_attrs[key.PARENT]], each) for each in those):
            x += [before.user_attrs[key.ENV_STEPS], after.user_attrs[key.ENV_STEPS], None]
            y += [before.values[0], after.values[0], None]
        figure.add_scatter(x=x, y=y, mode="lines", line=line, name=name, hoverinfo="skip")
    text = [words(trial_line(each)) for each in shown.values()]
    x, y = [each.user_attrs[key.ENV_STEPS] for each in shown.values()], [each.values[0] for each in shown.values()]
    marker = {"color": [_RED if number in of_best else _BLUE for number in shown], "size": 6}
    return figure.add_scatter(x=x, y=y, mode="markers", marker=marker, text=text, hoverinfo="text", name="trial")


def _schedules(drawing: _Drawing) -> Any:
    """A part for each parameter: its value in each trial, from the first env step of the trial to its last."""
    shown = [each for each in drawing.trials if key.ENV_STEPS in each.user_attrs and each.params]
    names = sorted({name for trial in shown for name in trial.params})
    if not names:
        return _NONE_COMPLETE
    figures, of_best = list[Any](), {trial.number for trial in drawing.lineage()}
    for name in names:
        figure = _axes("env steps", words(name)).update_layout(showlegend=False, height=_SLICE_HEIGHT)
        values, axis = _axis(shown, name)
        ends = [trial.user_attrs[key.ENV_STEPS] for trial in shown]
        parents = [trial.user_attrs.get(key.PARENT) for trial in shown]
        starts = [0 if each is None else drawing.trials[each].user_attrs.get(key.ENV_STEPS, 0) for each in parents]
        for is_best, line in ((False, {"color": _GREY, "width": 1}), (True, {"color": _RED, "width": 3})):
            lines = zip(shown, starts, ends, values, strict=True)
            own = [(start, end, value) for trial, start, end, value in lines if (trial.number in of_best) == is_best]
            x = [step for start, end, _ in own for step in (start, end, None)]
            y = [each for _, _, value in own for each in (value, value, None)]
            label = "the run of the best member" if is_best else "others"
            figure.add_scatter(x=x, y=y, mode="lines", line=line, name=label)
        figures.append(figure.update_yaxes(**axis, automargin=True))
    return figures


def _slices(drawing: _Drawing) -> Any:
    """A figure for each parameter, with a star at the winner; all have the same scale of values."""
    if not drawing.values:
        return _NONE_COMPLETE
    names = sorted({name for trial in drawing.complete for name in trial.params})
    last, shown, figures = len(drawing.trials), {**drawing.values, **drawing.pruned}, list[Any]()
    low, high = min(shown.values()), max(shown.values())
    margin = 0.08 * (high - low) or 1.0
    for name in names:
        numbers = [number for number in sorted(shown) if name in drawing.trials[number].params]
        x, axis = _axis([drawing.trials[number] for number in numbers], name)
        color = {"color": numbers, "colorscale": [(0, "#bbb"), (1, _BLUE)], "cmin": 0, "cmax": last}
        color["symbol"] = ["circle-open" if number in drawing.pruned else "circle" for number in numbers]
        y = [shown[number] for number in numbers]
        text = [f"trial {number}{' (pruned)' * (number in drawing.pruned)}" for number in numbers]
        figure = _axes(words(name), "objective").update_layout(showlegend=False, height=_SLICE_HEIGHT)
        figure.add_scatter(x=x, y=y, text=text, mode="markers", marker=color, name="")
        if drawing.winner in numbers:
            figure.add_scatter(**drawing.star(x[numbers.index(drawing.winner)]))
        figures.append(figure.update_xaxes(**axis).update_yaxes(range=[low - margin, high + margin]))
    return figures


def _axis(trials: Sequence[FrozenTrial], name: str) -> tuple[list[float], dict[str, Any]]:
    """Where the values of a parameter are on its axis; choices are at 0, 1, ... in their order."""
    values = [trial.params[name] for trial in trials]
    domain: Any = trials[-1].distributions[name]
    if isinstance(domain, CategoricalDistribution):
        places = {value_text(value): place for place, value in enumerate(domain.choices)}
        labels = [words(label if len(label) <= _LONGEST_LABEL else f"{label[:_LONGEST_LABEL]}...") for label in places]
        ticks = {"tickvals": [*places.values()], "ticktext": labels, "range": [-0.5, len(domain.choices) - 0.5]}
        return [places[value_text(value)] for value in values], ticks
    if not isinstance(domain, IntDistribution | FloatDistribution):
        return values, {}
    low, high = min(domain.low, *values), max(domain.high, *values)
    if domain.log:
        return values, _log_axis(low, high)
    return values, _whole(high - low) if isinstance(domain, IntDistribution) else {}


def _log_axis(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis with so few ticks that their labels have room."""
    digits = (1, 2, 5) if high / low < 200 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [tick for power in powers for digit in digits if low <= (tick := float(f"{digit}e{power}")) <= high]
    ticks = ticks if len(ticks) > 1 else [low, high]
    bounds = [math.log10(low) - 0.05, math.log10(high) + 0.05]
    return {"type": "log", "range": bounds, "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def _whole(extent: float) -> dict[str, Any]:
    """An axis of whole numbers, which has no ticks at fractions."""
    return {"dtick": 1} if extent <= _FEW_NUMBERS else {}


def _timeline(drawing: _Drawing) -> Any:
    """A bar for each trial from its start to its end; a trial that runs ends where the last news is."""
    started = [trial for trial in drawing.trials if trial.datetime_start is not None]
    if not started:
        return "no trial was started"
    news = max(time for trial in started for time in (trial.datetime_start, trial.datetime_complete) if time)
    figure = _axes("", "trial").update_layout(barmode="overlay")
    for state, color in _STATES.items():
        trials = [trial for trial in started if trial.state.name == state]
        spans = [(trial.datetime_start or news, trial.datetime_complete or news) for trial in trials]
        seconds = [(end - start).total_seconds() for start, end in spans]
        text, x = [f"{each:.4g} s" for each in seconds], [1000 * each for each in seconds]
        y, marker = [trial.number for trial in trials], {"color": color, "line": {"width": 0}}
        style = {"name": state, "orientation": "h", "width": 0.8, "marker": marker}
        if trials:
            figure.add_bar(x=x, base=[start for start, _ in spans], y=y, hovertext=text, **style)
    numbers = [trial.number for trial in started]
    bounds = [max(numbers) + 0.6, min(numbers) - 0.6]
    return figure.update_xaxes(type="date", nticks=5).update_yaxes(range=bounds, **_whole(bounds[0] - bounds[1]))


def _axes(x: str, y: str) -> Any:
    return Figure(layout={"xaxis": {"title": x}, "yaxis": {"title": y}, "showlegend": True})


_CURVES = f"The objective at each evaluation: the best {_N_NAMED} in colour, the winner thick. A line tells its trial."
_IMPORTANCES = (
    "How far each parameter sets the best quarter of the trials apart, as a share of all, by Optuna's PED-ANOVA "
    "(Watanabe et al., IJCAI 2023). Parameters that do not matter have bars, too, by chance."
)
_PRUNED = "Rings are pruned trials, at their last evaluation."
_SLICES = f"The value over each parameter; the bluer, the later the trial. The star is the winner. {_PRUNED}"
_LINEAGE = (
    "The value of each member after each generation. Where a member copies another one, a dotted line leads from the "
    "run that was copied to what became of it."
)
_SCHEDULES = "The settings of all members over their env steps; those of the best member's run are thick."
_FIGURES: tuple[tuple[str, str, Callable[[_Drawing], Any]], ...] = (  # title, note, and what draws it
    (
        "Optimization history",
        f"The value of each trial, and the best so far. The star is the winner. {_PRUNED}",
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
