"""What a search may choose from, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from marl_sb3.errors import ConfigError
from marl_sb3.tuning.space import parse_grid, parse_space, read_space


def chosen(space: Any, **fixed: Any) -> dict[str, Any]:
    return space.suggest(optuna.trial.FixedTrial(fixed))


def test_each_kind_of_range_becomes_a_setting() -> None:
    space = parse_space(
        {
            "batch_size": {"choices": [64, 128]},
            "lr": {"log_uniform": [1e-4, 1e-2], "linear": True},
            "gamma": {"uniform": [0.9, 0.99]},
            "n_epochs": {"int": [3, 15]},
            "ent_coef": 0.01,
            "pol1.net_arch": {"choices": [[64, 64], [32]]},
        },
        "here",
    )
    fixed = {"batch_size": 128, "learning_rate": 0.001, "gamma": 0.95, "n_epochs": 4}
    assert chosen(space, **fixed, **{"pol1.policy_kwargs.net_arch": "[32]"}) == {
        "ent_coef": 0.01,
        "batch_size": 128,
        "learning_rate": "lin_0.001",
        "gamma": 0.95,
        "n_epochs": 4,
        "pol1.policy_kwargs.net_arch": [32],
    }


def test_a_space_is_the_same_after_it_was_written() -> None:
    section = {
        "net": {"choices": [[64], [32, 32]]},
        "act": {"choices": ["[relu", "tanh"]},
        "learning_rate": {"log_uniform": [1e-4, 1e-2], "linear": True},
        "gamma": 0.9,
    }
    space = parse_space(section, "here")
    assert space.to_plain() == section
    assert parse_space(space.to_plain(), "there") == space


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("minibatch_size", "batch_size"),
        ("lr", "learning_rate"),
        ("lambda", "gae_lambda"),
        ("pol1.lr", "pol1.learning_rate"),
        ("fcnet_hiddens", "policy_kwargs.net_arch"),
        ("policy_kwargs.net_arch", "policy_kwargs.net_arch"),
        ("pol1.policy_kwargs.net_arch", "pol1.policy_kwargs.net_arch"),
        ("env.height", "env.height"),
        ("gamma", "gamma"),
    ],
)
def test_names_of_rllib_are_understood(name: str, canonical: str) -> None:
    (parameter,) = parse_space({name: {"choices": [1, 2]}}, "here").parameters
    assert parameter.name == canonical


def test_a_grid_has_every_combination_in_order() -> None:
    space = parse_grid(["minibatch_size=128,200", "gamma=0.9,0.99"])
    assert list(space.grid()) == [
        {"batch_size": 128, "gamma": 0.9},
        {"batch_size": 128, "gamma": 0.99},
        {"batch_size": 200, "gamma": 0.9},
        {"batch_size": 200, "gamma": 0.99},
    ]


def test_the_corners_have_every_extreme_of_every_parameter() -> None:
    space = parse_space({"batch_size": {"choices": [1, 2, 3]}, "gamma": {"uniform": [0.1, 0.2]}}, "here")
    corners = list(space.corners())
    assert {corner["batch_size"] for corner in corners} == {1, 2, 3}
    assert {corner["gamma"] for corner in corners} == {0.1, 0.2}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"gamma": {"uniform": [0.9]}}, "uniform is \\[0.9\\]; accepted: two numbers, lowest < highest"),
        ({"gamma": {"uniform": [0.99, 0.9]}}, "lowest < highest"),
        ({"gamma": {"uniform": [0.9, 0.9]}}, "lowest < highest"),
        ({"lr": {"log_uniform": [0, 1]}}, "0 < lowest < highest"),
        ({"n_epochs": {"int": [1, 2.5]}}, "two integers"),
        ({"gamma": {"uniform": ["a", "b"]}}, "two numbers"),
        ({"gamma": {"uniform": [0.1, float("inf")]}}, "two numbers, lowest < highest"),
        ({"gamma": {"int": [1, 10**400]}}, "accepted: two integers, lowest < highest"),
        ({"batch_size": {"choices": []}}, "a list that is not empty"),
        ({"batch_size": {"choices": 64}}, "a list that is not empty"),
        ({"batch_size": {"oneof": [64]}}, "accepted: {choices"),
        ({"batch_size": {"choices": [1], "int": [1, 2]}}, "accepted: {choices"),
        ({"batch_size": {"choices": [1], "linear": "yes"}}, "accepted: {choices"),
        ({"lr": {"int": [1, 2]}, "learning_rate": 3}, "learning_rate is set twice, here as learning_rate"),
        ({"gamma": 0.9}, "nothing to choose"),
        ({"lr": [1, 2]}, r"nothing to choose: .*; to choose from a list: learning_rate: {choices: \[1, 2\]}"),
        ({}, "nothing to choose"),
    ],
)
def test_a_range_that_is_none_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"here.*{message}"):
        parse_space(section, "here")


@pytest.mark.parametrize("text", ["gamma", "=1,2", "gamma=", ""])
def test_a_grid_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="accepted: KEY=A,B,C"):
        parse_grid([text])


def test_a_file_may_have_sections_by_env(tmp_path: Path) -> None:
    file = tmp_path / "my.space.yml"
    file.write_text("arena: {gamma: {uniform: [0.8, 0.9]}}\ndefault: {gamma: {uniform: [0.9, 0.99]}}\n")
    assert read_space("arena", "ppo", file).parameters[0].bounds == (0.8, 0.9)
    assert read_space("CartPole-v1", "ppo", file).parameters[0].bounds == (0.9, 0.99)
    file.write_text("gamma: {uniform: [0.5, 0.6]}\n")
    assert read_space("arena", "ppo", file).parameters[0].bounds == (0.5, 0.6)


def test_the_shipped_space_has_minibatch_size_and_learning_rate() -> None:
    for env in ("arena", "CartPole-v1"):
        assert {p.name for p in read_space(env, "ppo", None).parameters} >= {"batch_size", "learning_rate"}


@pytest.mark.parametrize("content", ["", "[1, 2]", "arena: 3", "a: &a [*a]"])
def test_a_file_that_is_no_space_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yml").write_text(content)
    with pytest.raises(ConfigError):
        read_space("arena", "ppo", tmp_path / "bad.yml")
