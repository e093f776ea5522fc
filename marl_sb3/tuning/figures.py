"""The figures of `report.html`, drawn by Optuna and adapted to the page."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna import visualization
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState
from plotly import graph_objects

from marl_sb3.tuning.study import best_first
from marl_sb3.tuning.trial import one_line

_N_NAMED = 10  # learning curves with colours and names
_LEAST_TO_COMPARE = 30  # trials; of fewer, the importance of a parameter is mostly chance
_N_PARALLEL = 200  # lines of parallel coordinates, each a trace of its own
_SLICES_PER_ROW, _SLICE_HEIGHT = 3, 260
_HISTORY_NAMES = {"Objective Value": "trial", "Best Value": "best so far"}
_NONE_COMPLETE = "no trial was trained to its end"
_DRAWN = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
_STAR = {"symbol": "star", "size": 14, "color": "#d62728", "line": {"width": 1, "color": "white"}}


@dataclass(frozen=True)
class _Drawing:
    """What the figures show; see `draw_all`.

    Attributes:
        study: a copy in memory, see `_bare_copy`.
        complete: the trials that Optuna draws, those with a finite value, best first.
    """

    study: optuna.Study
    mode: str
    trials: Sequence[FrozenTrial]
    complete: Sequence[FrozenTrial]
    winner: int | None

    def star(self, x: Any) -> dict[str, Any]:
        """A trace that marks the winner's value at `x`."""
        value = None if self.winner is None else self.trials[self.winner].value
        return {"x": [x], "y": [value], "mode": "markers", "marker": _STAR, "name": f"winner: trial {self.winner}"}


def draw_all(trials: Sequence[FrozenTrial], mode: str, winner: int | None) -> Iterator[tuple[str, str, Any | None]]:
    """Draw all figures of a study.

    Args:
        trials: all trials of the study, ordered by number.
        mode: whether the objective is maximized, `max`, or minimized, `min`.
        winner: the number of the winner; None if there is none.

    Returns:
        For each figure its title, a note on what it shows or why it cannot be drawn, and Plotly's figure or None.
    """
    complete = [trial for trial in best_first(trials, mode) if math.isfinite(trial.value or 0.0)]
    drawing = _Drawing(_bare_copy(trials, mode), mode, trials, complete, winner)
    for title, note, plot in _FIGURES:
        try:
            figure = plot(drawing)
        except Exception as error:  # the page is useful without this figure
            figure = f"{type(error).__name__}: {one_line(error)}"
        if isinstance(figure, str):
            yield title, f"Not drawn: {figure}.", None
        else:
            yield title, note, figure.update_layout(title=None, margin_t=40)  # the page has headings


class _Uncopied(optuna.storages.InMemoryStorage):
    """Gives its trials without copying them: Optuna's plots ask for all of them dozens of times."""

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return super().get_all_trials(study_id, deepcopy=False, states=states)


def _bare_copy(trials: Sequence[FrozenTrial], mode: str) -> optuna.Study:
    """A study in memory with these trials, without attributes: Optuna puts these into labels, where plotly makes links.

    Its trials are numbered anew.
    """
    bare = optuna.create_study(direction="maximize" if mode == "max" else "minimize", storage=_Uncopied())
    for trial in trials:
        without_attributes = copy.copy(trial)
        without_attributes.user_attrs = {}
        bare.add_trial(without_attributes)
    return bare


# --- Plots: each returns Plotly's figure, or why it cannot be drawn ---------------------------------------------------


def _history(drawing: _Drawing) -> Any:
    if not drawing.complete:
        return _NONE_COMPLETE
    figure = visualization.plot_optimization_history(drawing.study)
    figure.update_layout(yaxis_title="objective", xaxis_title="trial")
    figure.for_each_trace(lambda trace: trace.update(name=_HISTORY_NAMES.get(trace.name, trace.name)))
    return figure if drawing.winner is None else figure.add_scatter(**drawing.star(drawing.winner))


def _learning_curves(drawing: _Drawing) -> Any:
    """The best trials with colours and names, the winner thick and on top; all others are grey behind them."""
    if not any(trial.intermediate_values for trial in drawing.trials if trial.state in _DRAWN):
        return "no trial that did not fail was evaluated"
    figure = graph_objects.Figure()
    winner = [trial for trial in drawing.trials if trial.number == drawing.winner]
    named = [trial for trial in (*drawing.complete[:_N_NAMED], *winner) if trial.intermediate_values]
    ranks = {trial.number: rank for rank, trial in enumerate(named, start=2)}
    others = [trial for trial in drawing.trials if trial.number not in ranks and trial.state in _DRAWN]
    for dash, is_pruned in (("solid", False), ("dot", True)):
        _add_grey(figure, [trial for trial in others if (trial.state == TrialState.PRUNED) == is_pruned], dash)
    for number in sorted(ranks, key=lambda number: (number == drawing.winner, number)):
        curve = sorted(drawing.trials[number].intermediate_values.items())
        won = number == drawing.winner
        name, rank, width = (f"trial {number} (winner)", 1, 5) if won else (f"trial {number}", ranks[number], 2)
        style = {"mode": "lines+markers", "marker": {"maxdisplayed": 10}, "line": {"width": width}}
        x, y = [step for step, _ in curve], [value for _, value in curve]
        figure.add_scatter(x=x, y=y, name=name, legendrank=rank, **style)
    return figure.update_layout(xaxis_title="evaluation", yaxis_title="objective", showlegend=True)


def _add_grey(figure: Any, trials: Sequence[FrozenTrial], dash: str) -> None:
    """Add the curves of trials as one trace with gaps: plotly takes a minute for a trace of each of 2,000 trials."""
    points: list[tuple[int | None, float | None, str]] = []
    for trial in trials:
        label = f"trial {trial.number}{' (pruned)' if trial.state == TrialState.PRUNED else ''}"
        points += [(step, value, label) for step, value in sorted(trial.intermediate_values.items())]
        points.append((None, None, ""))
    if points:
        x, y, text = zip(*points, strict=True)
        line, marker = {"color": "#bbb", "width": 1, "dash": dash}, {"color": "#bbb", "size": 4}
        style = {"mode": "lines+markers", "line": line, "marker": marker, "name": "others", "showlegend": False}
        figure.add_scatter(x=x, y=y, text=text, **style)


def _importances(drawing: _Drawing) -> Any:
    if len(drawing.complete) < _LEAST_TO_COMPARE:
        missing = f"fewer than {_LEAST_TO_COMPARE} trials were trained to their end"
        return f"{missing}, so that it would show chance"
    if len({name for trial in drawing.complete for name in trial.params}) < 2:
        return "there is one parameter only"
    if len({trial.value for trial in drawing.complete}) == 1:
        return "all trials have the same value"
    with warnings.catch_warnings():
        # Experimental in Optuna 4, whose default, fANOVA, needs scikit-learn.
        warnings.filterwarnings("ignore", category=ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return visualization.plot_param_importances(drawing.study, evaluator=evaluator)


def _parallel_coordinates(drawing: _Drawing) -> Any:
    if not drawing.complete:
        return _NONE_COMPLETE
    return visualization.plot_parallel_coordinate(_bare_copy(drawing.complete[:_N_PARALLEL], drawing.mode))


def _slices(drawing: _Drawing) -> Any:
    """Optuna's plot with its parts in rows that fit the page, and a star at the winner."""
    if not drawing.complete:
        return _NONE_COMPLETE
    names = sorted({name for trial in drawing.complete for name in trial.params})
    figure = visualization.plot_slice(drawing.study)
    columns = min(_SLICES_PER_ROW, len(names))
    rows = math.ceil(len(names) / columns)
    width, height = 1 / columns, 1 / rows
    chosen = {} if drawing.winner is None else drawing.trials[drawing.winner].params
    layout: dict[str, Any] = {}
    for index, name in enumerate(names):
        row, column = divmod(index, columns)
        axis = "" if index == 0 else str(index + 1)
        layout[f"xaxis{axis}"] = {"domain": [column * width + 0.03, (column + 1) * width - 0.02], "title": name}
        top = 1 - row * height
        layout[f"yaxis{axis}"] = {"domain": [top - height * 0.72, top], "showticklabels": column == 0, "title": ""}
        if name in chosen:
            figure.add_scatter(xaxis=f"x{axis}", yaxis=f"y{axis}", showlegend=False, **drawing.star(chosen[name]))
    return figure.update_layout(width=None, height=80 + rows * _SLICE_HEIGHT, **layout)


def _timeline(drawing: _Drawing) -> Any:
    if not any(trial.datetime_start for trial in drawing.trials):
        return "no trial was started"
    return visualization.plot_timeline(drawing.study)


_CURVES = (
    f"The objective at each evaluation: the best {_N_NAMED} in colour, the winner thick; dotted where the trial was "
    "pruned. Pointing at a line names its trial."
)
_IMPORTANCES = (
    "What distinguishes the best tenth of the trials from the others, by PED-ANOVA (Watanabe et al., IJCAI 2023)."
)
_COORDINATES = (
    f"A line for each trial that was trained to its end, across its parameters; if there are more than {_N_PARALLEL}, "
    "for the best."
)
_SLICES = "The value over each parameter; the darker, the later the trial. The star is the winner."
_FIGURES: tuple[tuple[str, str, Callable[[_Drawing], Any]], ...] = (  # title, note, and what draws it
    ("Optimization history", "The value of each trial, and the best so far. The star is the winner.", _history),
    ("Learning curves", _CURVES, _learning_curves),
    ("Parameter importances", _IMPORTANCES, _importances),
    ("Parallel coordinates", _COORDINATES, _parallel_coordinates),
    ("Slices", _SLICES, _slices),
    ("Timeline", "When each trial ran, and what became of it.", _timeline),
)
