"""Training ends when a metric has reached a value, and says which."""

from __future__ import annotations

from typing import Any

import pytest
from toy_envs import ScriptedEnv

from marl_sb3 import ConfigError, MultiAgentAlgorithm, make_vec_env
from marl_sb3.callbacks import StopOnMetric

RETURN = "env_runners/episode_return_mean"


def learn(stop: StopOnMetric, total_timesteps: int = 60, **options: Any) -> MultiAgentAlgorithm:
    """Iterations of 6 env steps; an episode of 3 steps pays 3 to a and 6 to b."""
    settings = {"n_steps": 6, "batch_size": 4, "n_epochs": 1, "policy_kwargs": {"net_arch": [2]}, **options}
    algorithm = MultiAgentAlgorithm(make_vec_env(ScriptedEnv), seed=0, device="cpu", **settings)
    return algorithm.learn(total_timesteps, callback=stop)


@pytest.mark.parametrize(
    ("thresholds", "iterations", "reached"),
    [
        ({"iteration": 3}, 3, "iteration is 3, at least 3"),
        ({"num_env_steps_sampled_lifetime": 7}, 2, "num_env_steps_sampled_lifetime is 12, at least 7"),
        ({RETURN: 9}, 1, "env_runners/episode_return_mean is 9, at least 9"),
        ({RETURN: 9.001}, 10, None),
        (
            {"env_runners/agent_episode_returns_mean/b": 6.0},
            1,
            "env_runners/agent_episode_returns_mean/b is 6, at",
        ),
        ({RETURN: 100, "iteration": 2}, 2, "iteration is 2, at least 2"),
        ({"env_runners/episode_return_min": -5}, 1, "env_runners/episode_return_min is 9, at least -5"),
        ({}, 10, None),
    ],
)
def test_training_ends_with_the_iteration_that_reaches_a_threshold(
    thresholds: dict[str, float], iterations: int, reached: str | None
) -> None:
    stop = StopOnMetric(thresholds)
    assert learn(stop).iteration == iterations
    assert stop.reached is None if reached is None else str(stop.reached).startswith(reached)


def test_a_metric_without_a_value_yet_does_not_stop() -> None:
    # Two steps per iteration: the first episode, of three steps, ends in the second iteration.
    stop = StopOnMetric({RETURN: -1000})
    assert learn(stop, n_steps=2).iteration == 2


def test_an_unknown_metric_is_refused_before_the_first_step() -> None:
    with pytest.raises(ConfigError, match=f"unknown metric 'episode_return_mean'; did you mean {RETURN}") as caught:
        learn(StopOnMetric({"episode_return_mean": 1}))
    assert caught.value.key == "stop"


def test_thresholds_are_the_callbacks_own() -> None:
    thresholds = {RETURN: 9.0}
    stop = StopOnMetric(thresholds)
    thresholds.clear()
    assert stop.thresholds == {RETURN: 9.0}
