"""What policies gain over random ones, among random ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch as th
from playing import LINEAR, WORTH, ZeroSum, always

from marl_sb3 import MultiAgentAlgorithm, evaluate_against_random, make_vec_env
from marl_sb3.callbacks import EvaluationCallback
from marl_sb3.evaluation.playing import play


def test_gains_by_hand() -> None:
    """Where the masks leave random agents the action that is worth 0.25."""
    algorithm, env = always({"a": 0, "b": 1}), make_vec_env(ZeroSum, n_envs=3)
    assert evaluate_against_random(algorithm, env, 6, seed=1) == {
        "gain_mean": 0.25,
        "agent_gains_mean": {"a": 0.75, "b": -0.25},  # 1 and 0, less 0.25; both random: 0
        "module_gains_mean": {"a": 0.75, "b": -0.25},
    }


def test_without_masks_random_agents_take_every_action() -> None:
    algorithm, env = always({"a": 0, "b": 1}), make_vec_env(ZeroSum, n_envs=3, masked=False)
    gained = evaluate_against_random(algorithm, env, 1500, seed=1)["agent_gains_mean"]
    mean = sum(WORTH) / 4
    assert gained == {"a": pytest.approx(1 - mean, abs=0.04), "b": pytest.approx(0 - mean, abs=0.04)}
    played = play(algorithm, env, 1500, seed=1, acting=["a"]).agent_returns("a")
    shares = [np.mean(np.isclose(played, 1 - worth)) for worth in WORTH]
    assert shares == [pytest.approx(0.25, abs=0.04)] * 4


def test_the_same_seed_gives_the_same_gains_with_any_vectorizer() -> None:
    algorithm = MultiAgentAlgorithm(make_vec_env("arena", n_envs=2, seed=0, max_timesteps=20), seed=0)
    found = [
        evaluate_against_random(algorithm, make_vec_env("arena", 3, vectorizer=name, max_timesteps=20), 7, False, seed)
        for name, seed in (("batched", 2), ("sync", 2), ("batched", 3))
    ]
    assert found[0] == found[1] != found[2]
    assert set(found[0]["module_gains_mean"]) == {"shared"}
    assert found[0]["gain_mean"] == pytest.approx(np.mean(list(found[0]["agent_gains_mean"].values())))


def test_a_callback_adds_gains_and_leaves_the_training_as_it_is() -> None:
    def trained(*callbacks: EvaluationCallback) -> tuple[Any, MultiAgentAlgorithm]:
        env = make_vec_env(ZeroSum, n_envs=2, seed=0, masked=False)
        algorithm = MultiAgentAlgorithm(env, policies="shared", seed=0, **LINEAR)
        results: list[Any] = []
        algorithm.learn(32, callback=list(callbacks))
        results.append(algorithm.policies["shared"].policy.state_dict())
        return results[0], algorithm

    evaluation = EvaluationCallback(make_vec_env(ZeroSum, n_envs=2), interval=1, duration=4, against_random=True)
    plain, _ = trained()
    with_gains, algorithm = trained(evaluation)
    assert all(th.equal(plain[name], with_gains[name]) for name in plain)
    names = [name for name in evaluation.metric_names(algorithm) if "against_random" in name]
    prefix = "evaluation/against_random/"
    assert names == [f"{prefix}{name}" for name in ("gain_mean", "agent_gains_mean/a", "agent_gains_mean/b",
                                                    "module_gains_mean/shared")]  # fmt: skip
    result = algorithm.train_iteration()
    evaluation.complete_result(result)
    assert set(result["evaluation"]["against_random"]) == {"gain_mean", "agent_gains_mean", "module_gains_mean"}
