"""The number that a search optimises."""

from __future__ import annotations

import pytest

from marl_sb3.tools.tuning.search import Objective, parse_objectives

EVALUATED = {
    "evaluation": {
        "env_runners": {
            "episode_return_mean": 5.0,
            "agent_episode_returns_mean": {"a": 7.0, "b": -2.0},
            "custom_metrics": {"goals_mean": 3.0},
        }
    },
    "env_runners": {"episode_return_mean": 4.0},
}


@pytest.mark.parametrize(
    ("of", "value"),
    [("sum", 5.0), ("min", -2.0), ("a", 7.0), ("goals", 3.0), ("env_runners/episode_return_mean", 4.0)],
)
def test_an_objective_is_a_number_of_the_evaluation(of: str, value: float) -> None:
    assert Objective(of).value(EVALUATED) == value


@pytest.mark.parametrize(
    ("over", "mode", "value"),
    [("last", "max", 2.0), ("best", "max", 4.0), ("best", "min", 1.0), ("mean_of_last_2", "max", 3.0),
     ("mean_of_last_9", "max", 2.5)],
)  # fmt: skip
def test_a_trial_has_one_number(over: str, mode: str, value: float) -> None:
    results = [{"evaluation": {"env_runners": {"episode_return_mean": each}}} for each in (3.0, 1.0, 4.0, 2.0)]
    assert Objective(over=over, mode=mode).of_training(results) == value


@pytest.mark.parametrize(
    ("of", "metric"),
    [
        ("against_random", "evaluation/against_random/gain_mean"),
        ("hunters", "evaluation/env_runners/module_episode_returns_mean/hunters"),
    ],
)
def test_policies_and_gains_are_objectives(of: str, metric: str) -> None:
    assert Objective(of).metric([metric]) == metric
    assert Objective(of).plays_random == (of == "against_random")


def test_several_objectives_have_a_direction_each() -> None:
    found = parse_objectives("a, goals", "max,min", "last")
    assert [(each.of, each.mode, each.sign) for each in found] == [("a", "max", 1.0), ("goals", "min", -1.0)]
    assert [each.mode for each in parse_objectives("a,b", "min", "last")] == ["min", "min"]
