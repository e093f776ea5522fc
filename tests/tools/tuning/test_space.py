"""What a search may choose from, and what is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from marl_sb3.errors import ConfigError
from marl_sb3.files.plain_yaml import read_yaml
from marl_sb3.runs.building import resolved
from marl_sb3.runs.files import preset_path
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.tools.tuning.api import search_of
from marl_sb3.tools.tuning.search import Search
from marl_sb3.tools.tuning.space import Space, edge_warnings, parse_grid, parse_space, read_space


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


# --- The preset in a space --------------------------------------------------------------------------------------------

PRESET_FILES = sorted(path for path in preset_path("ppo").parent.glob("*.yml") if "." not in path.stem)
SHIPPED = [(path.stem, env) for path in PRESET_FILES for env in (*read_yaml(path), "without:preset")]


@pytest.mark.parametrize(("algo", "env"), SHIPPED)
def test_every_shipped_space_contains_its_preset(algo: str, env: str, in_tmp: Path) -> None:
    search = shipped_search(algo, env)
    params = search.preset_params()
    assert params is not None, search.space.missing(search.preset())
    assert 6 <= len(params) <= 10
    assert search.evaluations == 10
    again = search.config(search.space.settings(params))
    assert replace(resolved(replace(again, seed=0)), sources={}) == replace(search.preset(), sources={}) or (
        differing(again, search) <= {"policy_kwargs"}  # the default network, written out
    )
    rate = next(parameter for parameter in search.space.parameters if parameter.name == "learning_rate")
    assert bool(rate.linear) == str(search.preset().hyperparameters["learning_rate"]).startswith("lin_")


def shipped_search(algo: str, env: str) -> Search:
    return search_of(None, {"env": env, "name": "s", "algo": algo}, None, ())


def differing(config: TrainConfig, search: Search) -> set[str]:
    ours, theirs = (each.hyperparameters for each in (resolved(replace(config, seed=0)), search.preset()))
    return {
        name for name in ours if str(ours[name]).removeprefix("lin_") != str(theirs[name]).removeprefix("lin_")
        and not (str(ours[name]).startswith("lin_") and float(ours[name][4:]) == float(theirs[name][4:]))
    }  # fmt: skip


def space_of(**parameters: Any) -> Space:
    return parse_space(parameters, "space")


def test_a_space_says_why_it_does_not_contain_the_preset() -> None:
    preset = shipped_search("ppo", "arena").preset()
    rate = {"log_uniform": [1e-5, 1e-4]}
    for parameters, words in (
        ({"batch_size": {"choices": [50, 100]}}, "batch_size is 200, none of 50, 100"),
        ({"lr": {**rate, "linear": True}}, "learning_rate is 0.00136, outside 1e-05 to 0.0001"),
        ({"lr": {**rate, "linear": False}}, "learning_rate is the linear schedule lin_1.36e-3"),
        ({"gamma": {"uniform": [0.1, 0.95]}, "ent_coef": 0.5}, "ent_coef is 0.01, and 0.5 in all trials"),
        ({"clip_range": {"uniform": [0.1, 0.3], "linear": True}}, "clip_range is 0.2, and no linear schedule"),
        ({"n_envs": {"choices": [20, 40]}, "policy_kwargs.net_arch": {"choices": [[64, 64]]}}, ""),
        ({"policy_kwargs.net_arch": {"choices": [[32]]}}, "policy_kwargs.net_arch is [64, 64], none of [32]"),
        ({"env.height": {"int": [3, 9]}}, "env.height is None, outside 3 to 9"),
    ):
        space = space_of(**parameters)
        assert space.missing(preset) == words
        assert (space.params_of(preset) is None) == bool(words)
    followed = space_of(lr={"log_uniform": [1e-4, 1e-2]}).following(preset)
    assert followed.params_of(preset) == {"learning_rate": 0.00136}
    assert followed.settings({"learning_rate": 0.002}) == {"learning_rate": "lin_0.002"}


def test_schedules_of_points_may_be_chosen_and_may_be_in_a_preset() -> None:
    points = [[0, 1e-3], [500, 1e-4]]
    preset = replace(shipped_search("ppo", "arena").preset(), hyperparameters={"learning_rate": points})
    chosen, ranged = space_of(lr={"choices": [points, 5e-4]}), space_of(lr={"uniform": [1e-4, 1e-3]})
    assert [chosen.settings(each)["learning_rate"] for each in chosen.grid()] == [points, 5e-4]
    assert chosen.settings(chosen.params_of(preset)) == {"learning_rate": points}
    assert ranged.missing(preset) == "learning_rate is [[0, 0.001], [500, 0.0001]], outside 0.0001 to 0.001"
    assert ranged.following(preset).containing(preset, 10_000) == ranged


def test_a_shipped_space_takes_the_preset_in_and_leaves_out_what_no_rollout_fills() -> None:
    preset = shipped_search("ppo", "CartPole-v1").preset()  # 8 envs, 500 steps, minibatches of 128
    space = space_of(
        n_steps={"choices": [16, 128, 8192]}, batch_size={"choices": [64, 256]}, gamma={"uniform": [0.8, 0.9]}
    )
    found = space.containing(preset, longest=8 * 1000)
    assert [parameter.bounds for parameter in found.parameters] == [(16, 128, 500), (64, 128), (0.8, 0.99)]


# --- Ends of ranges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "bounds", "values", "end"),
    [
        ("log_uniform", [1e-4, 1e-2], [9e-3, 8e-3, 7e-3, 1e-2, 1e-3], "upper"),  # the outer tenth: from 6.3e-3 on
        ("log_uniform", [1e-4, 1e-2], [9e-3, 8e-3, 7e-3, 6e-3, 1e-3], None),
        ("uniform", [0.1, 1.1], [0.1, 0.15, 0.19, 0.2, 0.9], "lower"),
        ("uniform", [0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0], None),  # nothing lies below 0
        ("uniform", [0.5, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0], None),  # nor a discount above 1
        ("int", [3, 13], [13, 12, 12, 13, 3], "upper"),
        ("choices", [64, 32, 128], [128, 128, 128, 128, 128], "upper"),
        ("choices", [64, 32, 128], [128, 128, 128, 128, 64], None),
        ("choices", [64, 128], [128] * 5, None),  # one of two is no sign
        ("choices", ["relu", "tanh"], ["relu"] * 5, None),
    ],
)
def test_the_best_trials_may_lie_at_an_end(kind: str, bounds: list[Any], values: list[Any], end: str | None) -> None:
    space = space_of(vf_coef={kind: bounds})
    found = edge_warnings(space, [{"vf_coef": value} for value in values])
    low, high = (min(bounds), max(bounds)) if kind != "choices" or isinstance(bounds[0], int) else ("", "")
    words = (
        f"vf_coef: the best 5 trials lie at the {end} end of {low} to {high}; a wider range in a file for --space may "
    )
    assert found == ([] if end is None else [f"{words}hold better values"])
    assert edge_warnings(space, [{"vf_coef": value} for value in values[:4]]) == []
