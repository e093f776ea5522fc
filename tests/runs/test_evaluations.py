"""Runs that evaluate their policies while they train."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import assert_same_runs, broken, rows, start

import marl_sb3
from marl_sb3 import load_run
from marl_sb3.errors import ConfigError

EVALUATED = {"evaluation_interval": 2, "evaluation_duration": 3, "learning_rate": 1e-3}
NAME = "evaluation/env_runners/episode_return_mean"


def test_a_run_that_evaluates_learns_and_resumes_as_one_that_does_not(in_tmp: Path) -> None:
    start("plain", settings={"learning_rate": 1e-3})
    start("whole", settings=EVALUATED)
    broken("broken", settings=EVALUATED)
    marl_sb3.train(resume="broken")
    assert_same_runs("whole", "broken")
    assert [NAME in row and row[NAME] is not None for row in rows("whole")] == [False, True] * 4
    evaluated = [{k: v for k, v in row.items() if not k.startswith("evaluation/")} for row in rows("whole")]
    assert evaluated == rows("plain")


def test_an_evaluation_may_stop_the_run_and_choose_the_best_checkpoint(in_tmp: Path) -> None:
    run = start("run", stop={NAME: -1000}, settings={**EVALUATED, "checkpoint_metric": NAME})
    assert run.algorithm.iteration == 2
    assert run.stopped_by is not None
    assert run.stopped_by.startswith(NAME)
    with pytest.raises(ConfigError, match="unknown metric 'evaluation/env_runners/episode_return_mean'"):
        start("other", stop={NAME: 1})


def test_evaluating_a_restored_run_gives_the_figures_of_the_run(in_tmp: Path) -> None:
    run = start("run", settings={**EVALUATED, "checkpoint_every": 1}, iterations=4)
    from marl_sb3.evaluation.playing import evaluation_seed

    again = load_run("run", "4")
    env = marl_sb3.make_vec_env("arena", n_envs=2, max_timesteps=15)
    metrics = marl_sb3.evaluate_policies(
        again.algorithm, env, 3, again.config.evaluation.deterministic, evaluation_seed(again.config.seed)
    )
    assert metrics["episode_return_mean"] == rows("run")[-1][NAME]
    assert run.config.evaluation.deterministic is False  # the arena's preset says so
