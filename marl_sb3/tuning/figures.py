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
_DRAWN = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
_STAR = {"symbol": "star", "size": 14, "color": "#d62728", "line": {"width": 1, "color": "white"}}


@dataclass(frozen=True)
class Drawing:
    """What the figures show.

    Attributes:
        study: a copy in memory, see `_bare_copy`.
        trials: all trials of the study, ordered by number.
        winner: the number of the winner; None if there is none.
    """

    study: optuna.Study
    trials: Sequence[FrozenTrial]
    winner: int | None

    @property
    def ranked(self) -> list[FrozenTrial]:
        """The complete trials, best first."""
        is_max = self.study.direction == optuna.study.StudyDirection.MAXIMIZE
        return best_first(self.trials, "max" if is_max else "min")

    @property
    def complete(self) -> list[FrozenTrial]:
        """The trials that Optuna draws."""
        return [trial for trial in self.ranked if math.isfinite(trial.value or 0.0)]

    def star(self, x: Any) -> dict[str, Any]:
        """A trace that marks the winner's value at `x`."""
        assert self.winner is not None, "the caller has asked whether there is a winner"
        value = self.trials[self.winner].value
        return {"x": [x], "y": [value], "mode": "markers", "marker": _STAR, "name": f"winner: trial {self.winner}"}


def draw_all(
    study: optuna.Study, trials: Sequence[FrozenTrial], winner: int | None
) -> Iterator[tuple[str, str, Any | None]]:
    """Draw all figures of a study.

    Args:
        trials: all trials of the study, ordered by number.
        winner: the number of the winner; None if there is none.

    Returns:
        For each figure its title, a note on what it shows or why it cannot be drawn, and Plotly's figure or None.
    """
    bare = _bare_copy(study, trials)
    drawing = Drawing(bare, bare.get_trials(deepcopy=False), winner)
    for title, note, plot, missing in _FIGURES:
        reason, figure = missing(drawing), None
        if reason is None:
            try:
                # The page has headings.
                figure = plot(drawing).update_layout(title=None, margin_t=40)
            except Exception as error:  # the page is useful without this figure
                reason = f"{type(error).__name__}: {one_line(error)}"
        yield title, note if reason is None else f"Not drawn: {reason}.", figure


class _Uncopied(optuna.storages.InMemoryStorage):
    """Gives its trials without copying them: Optuna's plots ask for all of them dozens of times."""

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return super().get_all_trials(study_id, deepcopy=False, states=states)


def _bare_copy(study: optuna.Study, trials: Sequence[FrozenTrial]) -> optuna.Study:
    """A study in memory with these trials, without attributes: Optuna puts these into labels, where plotly makes links.

    Its trials are numbered anew.
    """
    bare = optuna.create_study(direction=study.direction, storage=_Uncopied())
    for trial in trials:
        without_attributes = copy.copy(trial)
        without_attributes.user_attrs = {}
        bare.add_trial(without_attributes)
    return bare


# --- Plots ------------------------------------------------------------------------------------------------------------


def _history(drawing: Drawing) -> Any:
    figure = visualization.plot_optimization_history(drawing.study)
    figure.update_layout(yaxis_title="objective", xaxis_title="trial")
    figure.for_each_trace(lambda trace: trace.update(name=_HISTORY_NAMES.get(trace.name, trace.name)))
    return figure if drawing.winner is None else figure.add_scatter(**drawing.star(drawing.winner))


def _learning_curves(drawing: Drawing) -> Any:
    """The best trials with colours and names, the winner thick and on top; all others are grey behind them."""
    figure = graph_objects.Figure()
    winner = [trial for trial in drawing.trials if trial.number == drawing.winner]
    named = [trial for trial in (*drawing.ranked[:_N_NAMED], *winner) if trial.intermediate_values]
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


def _importances(drawing: Drawing) -> Any:
    with warnings.catch_warnings():
        # Experimental in Optuna 4, whose default, fANOVA, needs scikit-learn.
        warnings.filterwarnings("ignore", category=ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return visualization.plot_param_importances(drawing.study, evaluator=evaluator)


def _parallel_coordinates(drawing: Drawing) -> Any:
    return visualization.plot_parallel_coordinate(_bare_copy(drawing.study, drawing.ranked[:_N_PARALLEL]))


def _slices(drawing: Drawing) -> Any:
    """Optuna's plot with its parts in rows that fit the page, and a star at the winner."""
    figure = visualization.plot_slice(drawing.study)
    names = sorted({name for trial in drawing.complete for name in trial.params})
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


# --- What a study lacks for a figure, as text; None: nothing ----------------------------------------------------------


def _no_complete_trial(drawing: Drawing) -> str | None:
    return None if drawing.complete else "no trial was trained to its end"


def _nothing_to_compare(drawing: Drawing) -> str | None:
    complete = drawing.complete
    if len(complete) < _LEAST_TO_COMPARE:
        return f"fewer than {_LEAST_TO_COMPARE} trials were trained to their end, so that it would show chance"
    if len({name for trial in complete for name in trial.params}) < 2:
        return "there is one parameter only"
    return "all trials have the same value" if len({trial.value for trial in complete}) == 1 else None


def _no_evaluation(drawing: Drawing) -> str | None:
    found = any(trial.intermediate_values for trial in drawing.trials if trial.state in _DRAWN)
    return None if found else "no trial that did not fail was evaluated"


def _none_started(drawing: Drawing) -> str | None:
    return None if any(trial.datetime_start for trial in drawing.trials) else "no trial was started"


# Title, note, the function that plots it, and the function that says what a study lacks for it.
_FIGURES: tuple[tuple[str, str, Callable[[Drawing], Any], Callable[[Drawing], str | None]], ...] = (
    (
        "Optimization history",
        "The value of each trial, and the best so far. The star is the winner.",
        _history,
        _no_complete_trial,
    ),
    (
        "Learning curves",
        f"The objective at each evaluation: the best {_N_NAMED} in colour, the winner thick; dotted where the trial "
        "was pruned. Pointing at a line names its trial.",
        _learning_curves,
        _no_evaluation,
    ),
    (
        "Parameter importances",
        "What distinguishes the best tenth of the trials from the others, by PED-ANOVA (Watanabe et al., IJCAI 2023).",
        _importances,
        _nothing_to_compare,
    ),
    (
        "Parallel coordinates",
        "A line for each trial that was trained to its end, across its parameters; if there are more than "
        f"{_N_PARALLEL}, for the best.",
        _parallel_coordinates,
        _no_complete_trial,
    ),
    (
        "Slices",
        "The value over each parameter; the darker, the later the trial. The star is the winner.",
        _slices,
        _no_complete_trial,
    ),
    (
        "Timeline",
        "When each trial ran, and what became of it.",
        lambda drawing: visualization.plot_timeline(drawing.study),
        _none_started,
    ),
)
