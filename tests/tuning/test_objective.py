"""The number that a search optimises."""

from __future__ import annotations

from typing import Any

import pytest

from marl_sb3.tuning.objective import Objective, opposition, parse_objectives

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
    assert Objective(over=over, mode=mode).final([3.0, 1.0, 4.0, 2.0]) == value


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


# --- Returns that oppose each other -----------------------------------------------------------------------------------


def training(agents: list[list[float]], policies: list[list[float]] | None = None) -> list[Any]:
    return [
        {
            "env_runners": {
                "agent_episode_returns_mean": {f"a{i}": value for i, value in enumerate(of_agents)},
                "module_episode_returns_mean": {f"p{i}": value for i, value in enumerate(of_policies)},
            }
        }
        for of_agents, of_policies in zip(agents, policies or agents, strict=True)
    ]


def test_a_zero_sum_game_is_seen_after_three_iterations() -> None:
    played = training([[0.2, -0.2], [-0.4, 0.4], [0.1, -0.1]])
    words = "the agents' returns oppose each other: their sum is always about 0"
    assert opposition(played, is_whole=False) == words
    assert opposition(played[:2], is_whole=False) is None
    shifted = training([[5.2, 4.8], [4.6, 5.4], [5.1, 4.9]])
    assert opposition(shifted, is_whole=False) == "the agents' returns oppose each other: their sum is always about 10"


def test_a_team_that_hunts_another_is_seen_at_the_end() -> None:
    hunted = [[6.0, 6.0, -15.0], [9.0, 9.0, -19.0], [20.0, 20.0, -31.0], [30.0, 30.0, -38.0]]
    of_policies = [[6.0, -15.0], [9.0, -19.0], [20.0, -31.0], [30.0, -38.0]]
    played = training(hunted, of_policies)
    assert opposition(played, is_whole=False) is None
    words = "the policies' returns oppose each other: what one gains in the training, others lose (+24, -23)"
    assert opposition(played, is_whole=True) == words


@pytest.mark.parametrize(
    "returns",
    [
        [[0.7, -9.0], [20.0, -8.0], [39.0, -4.0]],  # the arena
        [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]],  # constant: every setting is as good
        [[5.0], [7.0], [9.0]],  # one agent
        [[1.0, 5.0], [4.0, 4.0], [9.0, 3.0]],
    ],
)
def test_other_returns_do_not_oppose_each_other(returns: list[list[float]]) -> None:
    assert opposition(training(returns), is_whole=True) is None
