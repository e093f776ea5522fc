"""Evaluations in the course of a training: when, of what, where their numbers go, and without a trace."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from small_trainings import Results, without_clock
from stable_baselines3.common.callbacks import CallbackList
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import ConfigError, HookError, MultiAgentAlgorithm, MultiAgentVecEnv, make_vec_env
from marl_sb3.callbacks import CheckpointCallback, EvaluationCallback, StopOnMetric
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.training.results import ResultLogger
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.evaluation.playing import evaluation_seed
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.results.result_log import read_results
from marl_sb3.runs.logs import CsvFormat, JsonLinesFormat
from marl_sb3.train import main

RETURN = "evaluation/env_runners/episode_return_mean"
SMALL: dict[str, Any] = {"n_steps": 6, "batch_size": 4, "n_epochs": 1, "policy_kwargs": {"net_arch": [2]}}


def make(env: Any = ScriptedEnv, **options: Any) -> MultiAgentAlgorithm:
    return MultiAgentAlgorithm(make_vec_env(env), **{"seed": 0, "device": "cpu", **SMALL, **options})


def learn(callback: EvaluationCallback, iterations: int = 5, **options: Any) -> list[dict[str, Any]]:
    results = Results()
    make(**options).learn(iterations * SMALL["n_steps"], callback=[callback, results])
    return results.kept


def two_envs() -> MultiAgentVecEnv:
    return make_vec_env(ScriptedEnv, n_envs=2)


# When, and of what


@pytest.mark.parametrize(("interval", "evaluated"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (5, [5]), (6, [])])
def test_every_interval_of_iterations_is_evaluated(interval: int, evaluated: list[int]) -> None:
    results = learn(EvaluationCallback(two_envs, interval))
    assert [result["iteration"] for result in results if "evaluation" in result] == evaluated


@pytest.mark.parametrize(
    ("options", "episodes", "env_steps"),
    [({}, 10, 30), ({"duration": 3}, 3, 9), ({"duration": 8, "duration_unit": "timesteps"}, 2, 6)],
)
def test_duration_is_in_episodes_or_env_steps(options: dict[str, Any], episodes: int, env_steps: int) -> None:
    (result,) = learn(EvaluationCallback(two_envs, 1, **options), iterations=1)
    metrics = result["evaluation"]["env_runners"]
    assert (metrics["num_episodes"], metrics["num_env_steps_sampled"]) == (episodes, env_steps)
    assert metrics["agent_episode_returns_mean"] == {"a": 3.0, "b": 6.0}


@pytest.mark.parametrize(("seed", "used"), [(7, 7), (None, evaluation_seed(0))])
def test_every_evaluation_plays_the_same_episodes(seed: int | None, used: int) -> None:
    env = two_envs()
    learn(EvaluationCallback(env, 1, duration=2, seed=seed), iterations=3)
    for index, seeds in enumerate(env.call("seeds", [0, 1])):
        assert seeds == [episode_seed(used, index, 0), episode_seed(used, index, 1)] * 3


def test_a_training_without_a_seed_has_equal_evaluations_too() -> None:
    env = two_envs()
    learn(EvaluationCallback(env, 1, duration=2), iterations=2, seed=None)
    (first, second, third, fourth), _ = env.call("seeds", [0, 1])
    assert (first, second) == (third, fourth)


def test_actions_are_the_most_likely_ones_unless_sampled_ones_are_wanted() -> None:
    def arena() -> MultiAgentVecEnv:
        return make_vec_env("arena", n_envs=2)

    likely, again, sampled, sampled_again = (
        without_clock(learn(EvaluationCallback(arena, 1, 4, **options), iterations=1, env="arena")[0]["evaluation"])
        for options in ({}, {"deterministic": True}, {"deterministic": False}, {"deterministic": False})
    )
    assert likely == again != sampled == sampled_again


# Where the numbers go


def test_numbers_wait_for_the_next_result_that_is_written(tmp_path: Path) -> None:
    algorithm = make()
    algorithm.set_logger(ResultLogger(None, [JsonLinesFormat(tmp_path)]))
    algorithm.learn(6 * SMALL["n_steps"], callback=EvaluationCallback(two_envs, interval=2), log_interval=3)
    algorithm.logger.close()
    written = read_results(tmp_path)
    assert [(result["iteration"], "evaluation" in result) for result in written] == [(3, True), (6, True)]


@pytest.mark.parametrize("evaluation_first", [True, False])
def test_all_see_the_evaluation_whatever_the_order_of_callbacks(evaluation_first: bool, tmp_path: Path) -> None:
    algorithm, evaluation, seen = make(), EvaluationCallback(two_envs, interval=2), Results()
    stop = StopOnMetric({RETURN: 9.0}, evaluation.metric_names(algorithm))
    best = CheckpointCallback(tmp_path / "checkpoints", every=1, metric=RETURN)
    others = [seen, stop, best]
    formats = [JsonLinesFormat(tmp_path), CsvFormat(tmp_path)]
    algorithm.set_logger(ResultLogger(None, formats))
    algorithm.learn(60, callback=[evaluation, *others] if evaluation_first else [CallbackList(others), evaluation])
    algorithm.logger.close()
    assert algorithm.iteration == 2
    assert [flatten(result).get(RETURN) for result in seen.kept] == [None, 9.0]
    assert [flatten(result).get(RETURN) for result in read_results(tmp_path)] == [None, 9.0]
    with (tmp_path / "progress.csv").open() as file:
        assert [row[RETURN] for row in csv.DictReader(file)] == ["", "9.0"]
    assert CheckpointFolder(tmp_path / "checkpoints").best() == "ckpt-000002"


def test_names_are_known_before_the_first_evaluation() -> None:
    evaluation = EvaluationCallback(two_envs, interval=1)
    names = evaluation.metric_names(make())
    (result,) = learn(evaluation, iterations=1)
    assert names == list(flatten(result["evaluation"], "evaluation/"))
    with pytest.raises(ConfigError, match="did you mean evaluation/env_runners/episode_return_"):
        make().learn(6, callback=StopOnMetric({"evaluation/env_runners/episode_return": 1}, names))


# A function of the user's own


def test_a_function_of_ones_own_evaluates_instead() -> None:
    heard: list[Any] = []

    def own(algo: MultiAgentAlgorithm, env: MultiAgentVecEnv) -> dict[str, Any]:
        env.reset()
        heard.append((algo, env, env.call("seeds", [0])[0][-1]))
        random.random(), np.random.random(), th.rand(1)  # noqa: NPY002
        return {"luck": np.float64(0.25), "deep": {"nan": float("nan")}}

    env = two_envs()
    callback = EvaluationCallback(env, interval=2, seed=5, evaluation_function=own)
    assert callback.metric_names(make()) == ["evaluation/*"]
    algorithm, kept = make(), Results()
    algorithm.learn(30, callback=[callback, kept])
    assert heard == [(algorithm, env, episode_seed(5, 0, 0))] * 2
    assert kept.kept[1]["evaluation"] == {"luck": 0.25, "deep": {"nan": None}}
    plain = Results()
    make().learn(30, callback=plain)
    assert without_clock(plain.kept[-1]) == without_clock(kept.kept[-1])


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (3, "it returned 3; accepted: a mapping of names to numbers"),
        ({"a": {"b": "many"}}, "a/b is 'many'; accepted: a number"),
        (None, "ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_function_is_named(returned: Any, words: str) -> None:
    def mine(algo: Any, env: Any) -> Any:
        return returned or 1 / 0

    with pytest.raises(HookError, match=f"evaluation function .*mine, after iteration 1: {words}"):
        learn(EvaluationCallback(two_envs(), interval=1, evaluation_function=mine))


FUNCTION = """
def steps(algorithm, envs):
    return {"steps": algorithm.num_timesteps, "envs": {"number": envs.num_envs}}
"""


def test_a_function_is_named_by_settings_and_never_by_run_folders(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own_evaluation_module.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(in_tmp)
    named = ["--set", "evaluation.function=own_evaluation_module:steps"]
    settings = ["--set", "n_envs=4", "--set", "n_steps=25", "--set", "evaluation.interval=1"]
    stop = ["--stop", "evaluation/steps=200", "--set", "checkpoints.metric=evaluation/steps", "--run-dir", "run"]
    assert main(["arena", *settings, *named, *stop, "--quiet"]) == 0
    assert [result["evaluation"] for result in read_results(Path("run"))] == [
        {"steps": steps, "envs": {"number": 4}} for steps in (100, 200)
    ]
    assert main(["--resume", "run", "--timesteps", "100", "--quiet"]) == 2
    assert "a run folder cannot import its evaluation.function" in capsys.readouterr().err
    assert main(["--resume", "run", "--timesteps", "100", "--quiet", *named]) == 0
    for wrong, words in (
        ("steps", "accepted: MODULE:NAME of a function"),
        ("own_evaluation_module:no", "no function 'no'"),
    ):
        assert main(["arena", *settings, "--set", f"evaluation.function={wrong}"]) == 2
        assert words in capsys.readouterr().err
    assert main(["arena", *named]) == 2
    assert "evaluation.interval is 0: it would never be called" in capsys.readouterr().err


# Its envs


def test_envs_that_it_makes_are_closed_with_the_training_and_made_again() -> None:
    made: list[MultiAgentVecEnv] = []

    def factory() -> MultiAgentVecEnv:
        made.append(two_envs())
        return made[-1]

    callback = EvaluationCallback(factory, interval=1)
    for _ in range(2):
        learn(callback, iterations=2)
    assert [env.call("closed", [0, 1]) for env in made] == [[1, 1], [1, 1]]


def test_envs_that_it_is_given_stay_open() -> None:
    env = two_envs()
    learn(EvaluationCallback(env, interval=1), iterations=1)
    assert env.call("closed", [0, 1]) == [0, 0]


def test_the_envs_of_the_training_and_others_that_do_not_fit_are_refused() -> None:
    algorithm = make()
    with pytest.raises(ConfigError, match="the envs of the evaluation are those of the training"):
        algorithm.learn(6, callback=EvaluationCallback(algorithm.env))
    with pytest.raises(ConfigError, match="the env has agents agent1, agent2; the policies act for a, b"):
        algorithm.learn(6, callback=EvaluationCallback(lambda: make_vec_env("arena")))
    assert algorithm.num_timesteps == 0


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: EvaluationCallback(two_envs, interval=0), "interval is 0; accepted: an integer of at least 1"),
        (lambda: EvaluationCallback(two_envs, duration=-3), "duration is -3; accepted"),
        (lambda: EvaluationCallback(two_envs, duration=2.5), "duration is 2.5; accepted"),
        (
            lambda: EvaluationCallback(two_envs, duration_unit="steps"),
            "duration_unit is 'steps'; accepted: episodes or timesteps",
        ),
        (lambda: EvaluationCallback("arena"), "env is 'arena'; accepted: envs from make_vec_env, or a function"),
        (lambda: CheckpointCallback("checkpoints", every=-1), "every is -1; accepted: an integer of at least 0"),
        (lambda: CheckpointCallback("checkpoints", keep=0), "keep is 0; accepted: an integer of at least 1"),
        (lambda: CheckpointCallback(3), "folder is 3; accepted: a path"),
        (lambda: StopOnMetric({"iteration": float("nan")}), "accepted: a mapping of metric names to numbers"),
        (lambda: StopOnMetric(3), "thresholds is 3; accepted: a mapping of metric names to numbers"),
        (lambda: make(custom_metrics={"x": 3}), "custom_metrics is .*; accepted: a mapping of names to InfoMetric"),
        (lambda: make().save(3), "path is 3; accepted: a path"),
        (lambda: marl_sb3.examine("arena", 3), "env_kwargs is 3; accepted: a mapping of names to values"),
        (lambda: marl_sb3.examine("arena", measure_s=-1), "measure_s is -1; accepted: a number of at least 0"),
    ],
)
def test_wrong_arguments_are_refused_in_words(attempt: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        attempt()
