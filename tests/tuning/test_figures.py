"""The figures of a report: what they show, and why one is left out."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState
from searches import trial_of

from marl_sb3.tuning import figures
from marl_sb3.tuning.figures import draw_all
from marl_sb3.tuning.space import parse_space

SPACE: Mapping[str, Any] = {
    "learning_rate": {"log_uniform": [1e-4, 1e-2]}, "batch_size": {"choices": [50, 100]},
    "gamma": {"uniform": [0.8, 0.9]}, "policy_kwargs.net_arch": {"choices": [[64, 64], [32]]},
    "n_epochs": {"choices": [5, 6]},
}  # fmt: skip


def trials_of(values: Sequence[float], space: Mapping[str, Any] = SPACE) -> list[FrozenTrial]:
    parsed = parse_space(space, "space")
    return [trial_of(parsed, n, value=value, curve=[0.0, value]) for n, value in enumerate(values)]


def drawn(trials: Sequence[FrozenTrial], winner: int | None) -> dict[str, Any]:
    return {title: figure for title, _, figure in draw_all(trials, "max", winner)}


def missing(trials: Sequence[FrozenTrial]) -> list[str]:
    """The reasons why figures are not drawn."""
    return [note for _, note, figure in draw_all(trials, "max", None) if figure is None]


def test_slices_fit_the_page_and_the_winner_stands_out() -> None:
    trials = trials_of([1.0, 5.0, 3.0])
    shown = drawn(trials, 1)
    slices = shown["Slices"]
    assert slices.layout.width is None
    axes = [slices.layout[f"{side}axis{n or ''}"].domain for side in "xy" for n in (0, 2, 3, 4, 5)]
    assert all(0 <= low < high <= 1 for low, high in axes)
    assert len({slices.layout[f"yaxis{n or ''}"].domain for n in (0, 2, 3, 4, 5)}) == 2  # rows
    stars = [trace for trace in slices.data if trace.name == "winner: trial 1"]
    assert [(trace.x[0], trace.y[0]) for trace in stars] == [
        (value, 5.0) for _, value in sorted(trials[1].params.items())
    ]
    assert [trace.name for trace in shown["Optimization history"].data][-1] == "winner: trial 1"
    assert len(drawn(trials, None)["Slices"].data) == len(SPACE)  # while there is none yet


def test_learning_curves_have_names() -> None:
    trials = trials_of(range(12))
    trials.append(trial_of(parse_space(SPACE, "space"), 12, TrialState.PRUNED, 9.0, curve=[9.0]))
    figure = drawn(trials, 11)["Learning curves"]
    named = {trace.name: trace for trace in figure.data if trace.showlegend is None}
    assert {*named} == {"trial 11 (winner)", *(f"trial {number}" for number in range(2, 11))}
    assert figure.data[-1].name == "trial 11 (winner)"  # on top of the others
    widths = [trace.line.width for trace in figure.data]
    assert widths[-1] > max(widths[:-1])
    (dotted,) = [trace for trace in figure.data if trace.line.dash == "dot"]
    assert (dotted.text[0], dotted.y[0]) == ("trial 12 (pruned)", 9.0)
    grey = figure.data[0]
    assert (grey.text, grey.y) == (
        ("trial 0", "trial 0", "", "trial 1", "trial 1", ""),
        (0.0, 0.0, None, 0.0, 1.0, None),
    )


def test_the_figures_of_many_trials_have_few_traces_and_copy_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = trials_of(range(220))
    copies: list[int] = []
    deepcopy = copy.deepcopy
    monkeypatch.setattr(
        copy, "deepcopy", lambda x, *memo: (copies.append(1) if type(x) is FrozenTrial else None, deepcopy(x, *memo))[1]
    )
    shown = drawn(trials, 219)
    assert len(copies) == 220 + 200  # each trial once into the study that is drawn, and into that of one figure
    assert len(shown["Learning curves"].data) == 1 + 10
    lines = [trace.customdata[0][1] for trace in shown["Parallel coordinates"].data if trace.customdata is not None]
    assert sorted(map(float, lines)) == list(range(20, 220))


NONE_ENDED = "Not drawn: no trial was trained to its end."
TOO_FEW = "Not drawn: fewer than 30 trials were trained to their end, so that it would show chance."
NO_CURVE = "Not drawn: no trial that did not fail was evaluated."


@pytest.mark.parametrize(
    ("trials", "reasons"),
    [
        ([], [NONE_ENDED, NO_CURVE, TOO_FEW, NONE_ENDED, NONE_ENDED, "Not drawn: no trial was started."]),
        (
            [trial_of(parse_space(SPACE, "space"), 0, TrialState.FAIL)],
            [NONE_ENDED, NO_CURVE, TOO_FEW, NONE_ENDED, NONE_ENDED],
        ),
        (trials_of(range(29)), [TOO_FEW]),
        (trials_of(range(30)), []),
        (trials_of([2.0] * 30), ["Not drawn: all trials have the same value."]),
        (trials_of(range(30), {"gamma": {"uniform": [0.8, 0.9]}}), ["Not drawn: there is one parameter only."]),
    ],
    ids=["no trial", "a failed one", "too few", "enough", "equal ones", "one parameter"],
)
def test_figures_that_cannot_be_drawn_say_why(trials: Sequence[FrozenTrial], reasons: list[str]) -> None:
    assert missing(trials) == reasons


def test_a_figure_that_optuna_refuses_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise ValueError("</script>\n\x1b")

    monkeypatch.setattr(figures.visualization, "plot_slice", refuse)
    assert missing(trials_of(range(30))) == [r"Not drawn: ValueError: </script> \x1b."]
