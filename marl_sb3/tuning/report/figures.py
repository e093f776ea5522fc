"""The figures of `report.html`, drawn by Optuna and adapted to the page."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState

from marl_sb3.tuning.study import best_first
from marl_sb3.tuning.trial_text import one_line

_N_NAMED = 10  # learning curves with colours and names
_N_PARALLEL = 200  # lines of parallel coordinates, each a trace of its own
_LEAST_TO_COMPARE = 30  # trials; of fewer, the importance of a parameter is mostly chance
_SLICES_PER_ROW, _SLICE_HEIGHT = 3, 260
_HISTORY_NAMES = {"Objective Value": "trial", "Best Value": "best so far"}
_DRAWN = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
_STAR = {"symbol": "star", "size": 14, "color": "#d62728", "line": {"width": 1, "color": "white"}}


@dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
        plot: makes the figure from `optuna.visualization`, a study and the number of the winner.
        missing: what a study lacks for this figure, as text; None: nothing.
    """

    title: str
    note: str
    plot: Callable[[ModuleType, optuna.Study, int | None], Any]
    missing: Callable[[Sequence[FrozenTrial]], str | None]


def draw(figure: Figure, plots: ModuleType, study: optuna.Study, best: int | None) -> tuple[Any, str | None]:
    """Draw a figure.

    Args:
        best: the number of the winner; None if there is none.

    Returns:
        Plotly's figure and None; or None and the reason why it cannot be drawn.
    """
    reason = figure.missing(study.get_trials(deepcopy=False))
    if reason is not None:
        return None, reason
    try:
        drawn = figure.plot(plots, study, best)
    except Exception as error:  # the page is useful without this figure
        return None, f"{type(error).__name__}: {one_line(error)}"
    return drawn.update_layout(title=None, margin_t=40), None  # the page has headings


def _history(plots: ModuleType, study: optuna.Study, best: int | None) -> Any:
    figure = plots.plot_optimization_history(study).update_layout(yaxis_title="objective", xaxis_title="trial")
    figure.for_each_trace(lambda trace: trace.update(name=_HISTORY_NAMES.get(trace.name, trace.name)))
    if best is None:
        return figure
    return figure.add_scatter(
        x=[best], y=[study.trials[best].value], mode="markers", marker=_STAR, name=f"winner: trial {best}"
    )


def _importances(plots: ModuleType, study: optuna.Study, _: int | None) -> Any:
    with warnings.catch_warnings():
        # Experimental in Optuna 4, whose default, fANOVA, needs scikit-learn.
        warnings.filterwarnings("ignore", category=ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    return plots.plot_param_importances(study, evaluator=evaluator)


def _learning_curves(plots: ModuleType, study: optuna.Study, best: int | None) -> Any:
    """Optuna's plot of the best trials with colours and names, the winner thick; all others are grey behind them."""
    trials = study.get_trials(deepcopy=False)
    named = [trial.number for trial in best_first(trials, _mode(study))[:_N_NAMED]]
    places = {n: place for place, n in enumerate(dict.fromkeys([*([] if best is None else [best]), *named]))}
    numbers = sorted(places)
    figure = plots.plot_intermediate_values(bare_copy(study, [trials[number] for number in numbers]))
    for trace in figure.data:
        trial = trials[numbers[int(trace.name.removeprefix("Trial"))]]
        pruned, won = trial.state == TrialState.PRUNED, trial.number == best
        label = f"trial {trial.number}{' (winner)' if won else ' (pruned)' if pruned else ''}"
        trace.update(name=label, showlegend=True, legendrank=1 + places[trial.number], mode="lines+markers")
        trace.update(line_dash="dot" if pruned else "solid", line_width=5 if won else 2)
    colored = sorted(figure.data, key=lambda trace: "winner" in trace.name)
    others = [trial for trial in trials if trial.number not in places and trial.state in _DRAWN]
    figure.data = ()
    for pruned in (False, True):
        _add_grey(figure, [trial for trial in others if (trial.state == TrialState.PRUNED) == pruned], pruned=pruned)
    figure.add_traces(colored)
    return figure.update_layout(xaxis_title="evaluation", yaxis_title="objective", showlegend=True)


def _add_grey(figure: Any, trials: Sequence[FrozenTrial], *, pruned: bool) -> None:
    """Add the curves of trials as one trace with gaps: plotly takes a minute for a trace of each of 2,000 trials."""
    points: list[tuple[int | None, float | None, str]] = []
    for trial in trials:
        label = f"trial {trial.number}{' (pruned)' if pruned else ''}"
        points += [(step, value, label) for step, value in sorted(trial.intermediate_values.items())]
        points.append((None, None, ""))
    if points:
        x, y, text = zip(*points, strict=True)
        line = {"color": "#bbb", "width": 1, "dash": "dot" if pruned else "solid"}
        marker = {"color": "#bbb", "size": 4}
        figure.add_scatter(
            x=x, y=y, text=text, mode="lines+markers", line=line, marker=marker, name="others", showlegend=False
        )


class _Uncopied(optuna.storages.InMemoryStorage):
    """Gives its trials without copying them: Optuna's plots ask for all of them dozens of times."""

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return super().get_all_trials(study_id, deepcopy=False, states=states)


def bare_copy(study: optuna.Study, trials: Sequence[FrozenTrial]) -> optuna.Study:
    """A study in memory with these trials, without attributes: Optuna puts these into labels, where plotly makes links.

    Its trials are numbered anew.
    """
    bare = optuna.create_study(direction=study.direction, storage=_Uncopied())
    for trial in trials:
        without_attributes = copy.copy(trial)
        without_attributes.user_attrs = {}
        bare.add_trial(without_attributes)
    return bare


def _mode(study: optuna.Study) -> str:
    return "max" if study.direction == optuna.study.StudyDirection.MAXIMIZE else "min"


def _parallel_coordinates(plots: ModuleType, study: optuna.Study, _: int | None) -> Any:
    trials = best_first(study.get_trials(deepcopy=False), _mode(study))[:_N_PARALLEL]
    return plots.plot_parallel_coordinate(bare_copy(study, trials))


def _slices(plots: ModuleType, study: optuna.Study, best: int | None) -> Any:
    """Optuna's plot with its parts in rows that fit the page, and a star at the winner."""
    figure = plots.plot_slice(study)
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
    """The trials that Optuna draws."""
    return [t for t in trials if t.state == TrialState.COMPLETE and t.value is not None and math.isfinite(t.value)]


def _no_complete_trial(trials: Sequence[FrozenTrial]) -> str | None:
    return None if _complete(trials) else "no trial was trained to its end"


def _nothing_to_compare(trials: Sequence[FrozenTrial]) -> str | None:
    complete = _complete(trials)
    if len(complete) < _LEAST_TO_COMPARE:
        return f"fewer than {_LEAST_TO_COMPARE} trials were trained to their end, so that it would show chance"
    if len({name for trial in complete for name in trial.params}) < 2:
        return "there is one parameter only"
    return "all trials have the same value" if len({trial.value for trial in complete}) == 1 else None


def _no_evaluation(trials: Sequence[FrozenTrial]) -> str | None:
    found = any(trial.intermediate_values for trial in trials if trial.state in _DRAWN)
    return None if found else "no trial that did not fail was evaluated"


def _none_started(trials: Sequence[FrozenTrial]) -> str | None:
    return None if any(trial.datetime_start for trial in trials) else "no trial was started"


FIGURES = (
    Figure(
        "Optimization history",
        "The value of each trial, and the best so far. The star is the winner.",
        _history,
        _no_complete_trial,
    ),
    Figure(
        "Learning curves",
        f"The objective at each evaluation: the best {_N_NAMED} in colour, the winner thick; dotted where the trial "
        "was pruned. Pointing at a line names its trial.",
        _learning_curves,
        _no_evaluation,
    ),
    Figure(
        "Parameter importances",
        "What distinguishes the best tenth of the trials from the others, by PED-ANOVA (Watanabe et al., IJCAI 2023).",
        _importances,
        _nothing_to_compare,
    ),
    Figure(
        "Parallel coordinates",
        "A line for each trial that was trained to its end, across its parameters; if there are more than "
        f"{_N_PARALLEL}, for the best.",
        _parallel_coordinates,
        _no_complete_trial,
    ),
    Figure(
        "Slices",
        "The value over each parameter; the darker, the later the trial. The star is the winner.",
        _slices,
        _no_complete_trial,
    ),
    Figure(
        "Timeline",
        "When each trial ran, and what became of it.",
        lambda plots, study, _: plots.plot_timeline(study),
        _none_started,
    ),
)
