"""The figures of a report: what they show, and why one is left out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from searches import trial_of

from marl_sb3.tools.tuning import figures
from marl_sb3.tools.tuning.figures import draw_all
from marl_sb3.tools.tuning.space import parse_space

SPACE: Mapping[str, Any] = {
    "learning_rate": {"log_uniform": [1e-4, 1e-2]}, "batch_size": {"choices": [50, 100]},
    "gamma": {"uniform": [0.8, 0.9]}, "policy_kwargs.net_arch": {"choices": [[64, 64], [32]]},
    "n_epochs": {"choices": [5, 6]},
}  # fmt: skip


def trials_of(values: Sequence[float], space: Mapping[str, Any] = SPACE) -> list[FrozenTrial]:
    parsed = parse_space(space, "space")
    return [trial_of(parsed, n, value=value, curve=[0.0, value]) for n, value in enumerate(values)]


def not_a_number(trial: FrozenTrial) -> FrozenTrial:
    """The trial with a value that Optuna would not have made."""
    trial.values, trial.intermediate_values[2] = [math.nan], math.nan
    return trial


def drawn(trials: Sequence[FrozenTrial], winner: int | None) -> dict[str, Any]:
    """The figures; a list of them for slices, which have one for each parameter."""
    found = draw_all(trials, "max", winner)
    return {title: figures if title == "Slices" else figures[0] if figures else None for title, _, figures in found}


def missing(trials: Sequence[FrozenTrial]) -> list[str]:
    """The reasons why figures are not drawn."""
    return [note for _, note, figures in draw_all(trials, "max", None) if not figures]


def test_history_has_the_best_so_far_and_the_winner() -> None:
    trials = trials_of([1.0, 5.0, 3.0, 9.0, math.inf, 7.0])
    not_a_number(trials[3])
    values, star, best = drawn(trials, 5)["Optimization history"].data
    assert (tuple(best.x), tuple(best.y)) == ((0, 1, 2, 5), (1.0, 5.0, 5.0, 7.0))
    assert tuple(values.y) == (1.0, 5.0, 3.0, 7.0)
    assert (star.name, star.x, star.y) == ("winner: trial 5", (5,), (7.0,))
    lowest = next(figures[0] for _, _, figures in draw_all(trials, "min", None))
    assert tuple(lowest.data[-1].y) == (1.0, 1.0, 1.0, 1.0)


def test_pruned_trials_are_rings_where_their_last_evaluations_were() -> None:
    trials = trials_of([1.0, 5.0])
    trials.append(trial_of(parse_space(SPACE, "space"), 2, TrialState.PRUNED, 9.0, curve=[0.0, 9.0]))
    figures = drawn(trials, None)
    _, rings, best = figures["Optimization history"].data
    assert (rings.x, rings.y, rings.marker.symbol, best.y) == ((2,), (9.0,), "circle-open", (1.0, 5.0))
    for values, rings in (slice_.data for slice_ in figures["Slices"]):
        assert (values.y, rings.y, rings.marker.symbol) == ((1.0, 5.0), (9.0,), "circle-open")
        assert (rings.name, rings.text) == ("pruned", ("trial 2",))


def test_slices_fit_the_page_and_the_winner_stands_out() -> None:
    trials = trials_of([1.0, 5.0, 3.0])
    slices = drawn(trials, 1)["Slices"]
    assert {each.layout.width for each in slices} == {None}
    assert [each.layout.xaxis.title.text for each in slices] == sorted(SPACE)
    (scale,) = {each.layout.yaxis.range for each in slices}  # comparable
    assert scale == pytest.approx((0.68, 5.32))
    stars = [trace for each in slices for trace in each.data if trace.name == "winner: trial 1"]
    params = trials[1].params
    assert [(trace.x[0], trace.y[0]) for trace in stars] == [
        ([50, 100].index(params["batch_size"]), 5.0),
        (params["gamma"], 5.0),
        (params["learning_rate"], 5.0),
        ([5, 6].index(params["n_epochs"]), 5.0),
        (["[64, 64]", "[32]"].index(params["policy_kwargs.net_arch"]), 5.0),
    ]
    axis = slices[2].layout.xaxis  # the labels of plotly's own ticks lie on each other within a decade
    assert (axis.type, axis.tickvals, axis.tickformat) == ("log", (0.00068, 0.00084, 0.001, 0.0013), "~g")
    assert slices[4].layout.xaxis.ticktext == ("[64, 64]", "[32]")
    assert {len(each.data) for each in drawn(trials, None)["Slices"]} == {1}  # while there is none yet


def test_axes_of_whole_numbers_have_no_ticks_at_fractions() -> None:
    few, many = drawn(trials_of([1.0, 5.0, 3.0]), 1), drawn(trials_of(range(100)), 1)
    assert [few[title].layout.xaxis.dtick for title in ("Optimization history", "Learning curves")] == [1, 1]
    assert many["Optimization history"].layout.xaxis.dtick is None


def test_learning_curves_have_names() -> None:
    trials = trials_of(range(12))
    trials.append(trial_of(parse_space(SPACE, "space"), 12, TrialState.PRUNED, 9.0, curve=[9.0]))
    figure = drawn(trials, 11)["Learning curves"]
    others, *named = figure.data
    assert {trace.name for trace in named} == {"trial 11 (winner)", *(f"trial {number}" for number in range(2, 11))}
    assert named[-1].name == "trial 11 (winner)"  # on top of the others
    assert named[-1].line.width > max(trace.line.width for trace in named[:-1])
    assert len({(trace.line.color, trace.line.dash) for trace in named}) == len(named)
    assert sorted(named, key=lambda trace: trace.legendrank) == [named[-1], *named[:-1]]
    labels = ["trial 0 (COMPLETE)"] * 3 + ["trial 1 (COMPLETE)"] * 3 + ["trial 12 (PRUNED)"] * 2
    assert (list(others.text), others.y) == (labels, (0.0, 0.0, None, 0.0, 1.0, None, 9.0, None))


def test_timeline_has_the_wall_time_of_each_trial() -> None:
    trials = trials_of([1.0, 2.0, 3.0])
    start = datetime(2026, 1, 1)
    for trial, (state, begin, end) in zip(
        trials, [(TrialState.COMPLETE, 0, 10), (TrialState.FAIL, 5, 25), (TrialState.RUNNING, 20, None)], strict=True
    ):
        trial.state = state
        trial.datetime_start = start + timedelta(seconds=begin)
        trial.datetime_complete = None if end is None else start + timedelta(seconds=end)
    timeline = drawn(trials, None)["Timeline"]
    assert (timeline.layout.yaxis.autorange, timeline.layout.yaxis.dtick) == ("reversed", 1)
    shown = {trace.name: trace for trace in timeline.data}
    assert {name: (trace.y[0], trace.x[0] / 1000) for name, trace in shown.items()} == {
        "COMPLETE": (0, 10.0),
        "FAIL": (1, 20.0),
        "RUNNING": (2, 5.0),  # to the last news
    }


def test_the_figures_of_many_trials_have_few_traces() -> None:
    shown = drawn(trials_of(range(220)), 219)
    assert len(shown["Learning curves"].data) == 1 + 10
    assert sum(len(each.data) for each in [*shown.pop("Slices"), *shown.values()]) < 30


def test_figures_of_trials_of_every_kind_are_drawn() -> None:
    space = parse_space(SPACE, "space")
    odd = {"activation": {"choices": [None, True, "<a href='https://evil.example'>tanh</a>" * 3]}}
    trials = trials_of([9.0, math.inf, -math.inf, *range(32)])
    not_a_number(trials[0])
    trials += [
        trial_of(space, 35, TrialState.PRUNED, 9.0, curve=[math.nan, math.inf]),
        trial_of(space, 36, TrialState.FAIL),
        trial_of(space, 37, TrialState.RUNNING, curve=[2.0]),
        trial_of(parse_space(odd, "space"), 38, TrialState.COMPLETE, 3.0),
    ]
    shown = drawn(trials, 34)
    assert None not in shown.values()
    slices = shown.pop("Slices")
    assert [trace.y for each in slices for trace in each.data if trace.y == (3.0,)]  # a parameter that the others lack
    for figure in [*shown.values(), *slices]:
        assert "<a" not in "".join(str(axis.ticktext) for axis in [*figure.select_xaxes()])
        assert not re.search(r"NaN|Infinity", figure.to_json())


def test_figures_of_several_objectives_are_those_of_the_one_that_is_asked_for() -> None:
    trials = []
    for number in range(30):
        trial = trials_of(range(number + 1))[-1]
        drawn_again = optuna.create_trial(
            values=[float(number), -float(number)], params=trial.params, distributions=trial.distributions
        )
        drawn_again.number = number
        trials.append(drawn_again)
    assert missing(trials) == [NO_CURVE]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_importance_of_what_decides_is_on_top(mode: str) -> None:
    trials = trials_of([0.0] * 40)
    for rank, trial in enumerate(sorted(trials, key=lambda trial: trial.params["gamma"])):
        trial.values = [float(rank)]
    importances = next(each for title, _, each in draw_all(trials, mode, None) if "importances" in title)
    (bars,) = importances[0].data
    assert bars.y[-1] == "gamma"  # on top
    assert bars.x[-1] == max(bars.x) > 0.5
    assert sum(bars.x) == pytest.approx(1)


NONE_ENDED = "Not drawn: no trial was trained to its end."
TOO_FEW = "Not drawn: fewer than 30 trials were trained to their end, so that it would show chance."
NO_CURVE = "Not drawn: no trial that did not fail was evaluated."


@pytest.mark.parametrize(
    ("trials", "reasons"),
    [
        ([], [NONE_ENDED, NO_CURVE, TOO_FEW, NONE_ENDED, "Not drawn: no trial was started."]),
        ([trial_of(parse_space(SPACE, "space"), 0, TrialState.FAIL)], [NONE_ENDED, NO_CURVE, TOO_FEW, NONE_ENDED]),
        (trials_of([1.0]), [TOO_FEW]),
        (trials_of(range(29)), [TOO_FEW]),
        (trials_of(range(30)), []),
        (trials_of([2.0] * 30), ["Not drawn: all trials have the same value."]),
        (trials_of(range(30), {"gamma": {"uniform": [0.8, 0.9]}}), []),
    ],
    ids=["no trial", "a failed one", "one", "too few", "enough", "equal ones", "one parameter"],
)
def test_figures_that_cannot_be_drawn_say_why(trials: Sequence[FrozenTrial], reasons: list[str]) -> None:
    assert missing(trials) == reasons


def test_a_figure_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("</script>\n\x1b")

    monkeypatch.setattr(figures, "_axis", refuse)
    assert missing(trials_of(range(30))) == [r"Not drawn: ValueError: </script> \x1b."]
