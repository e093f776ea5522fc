"""An evaluation changes nothing in the training: generators, modes of modules, noise."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from playing import make, plans
from small_trainings import same_weights, without_clock
from toy_envs import NoisyEnv, SampledEnv, ScriptedEnv

from marl_sb3 import EnvError, PolicySpec, make_vec_env
from marl_sb3.evaluation.playing import evaluate_policies, preserve_training_state


def generators() -> tuple[Any, ...]:
    numpy_state = np.random.get_state()  # noqa: NPY002 - SB3's stream
    return th.get_rng_state().tolist(), numpy_state[1].tolist(), numpy_state[2:], random.getstate()


@pytest.mark.parametrize("seed", [None, 9])
def test_global_generators_are_left_as_they_were(seed: int | None) -> None:
    algorithm, env = make("arena"), make_vec_env("arena", n_envs=2)
    before = generators()
    evaluate_policies(algorithm, env, n_episodes=2, deterministic=False, seed=seed)
    assert generators() == before


class Breaks(ScriptedEnv):
    def step(self, actions: Mapping[str, Any]) -> Any:
        raise EnvError("it broke")


def test_generators_and_modes_are_put_back_after_a_failure_too() -> None:
    algorithm = make()
    algorithm.policies["shared"].policy.set_training_mode(True)
    before = generators()
    with pytest.raises(EnvError, match="it broke"):
        evaluate_policies(algorithm, make_vec_env(Breaks), deterministic=False)
    assert generators() == before
    assert all(module.training for module in algorithm.policies["shared"].policy.modules())


def test_each_module_keeps_its_mode() -> None:
    algorithm = make()
    policy = algorithm.policies["shared"].policy
    policy.set_training_mode(True)
    policy.action_net.train(False)
    evaluate_policies(algorithm, make_vec_env(ScriptedEnv), n_episodes=1)
    assert policy.training
    assert not policy.action_net.training


@pytest.mark.parametrize(
    ("env", "env_kwargs", "options"),
    [
        ("arena", {"max_timesteps": 5}, {"update_path": "fused"}),
        ("arena", {"max_timesteps": 5}, {"update_path": "torch", "policies": "per_agent"}),
        (NoisyEnv, {"plans": plans(2)}, {"policies": {"p": PolicySpec(stable_baselines3.PPO)}}),
        (
            SampledEnv,
            {
                "observation_space": spaces.Box(-1, 1, (2,), np.float32),
                "action_space": spaces.Box(-1, 1, (2,), np.float32),
            },
            {"use_sde": True, "sde_sample_freq": 3},
        ),
    ],
    ids=["fused", "torch", "stock", "gSDE"],
)
def test_a_training_is_the_same_with_and_without_evaluations(env: Any, env_kwargs: Any, options: Any) -> None:
    plain = make(env, env_kwargs=env_kwargs, **options)  # seeds the global generators, as SB3 does
    expected = [without_clock(plain.train_iteration()) for _ in range(4)]
    evaluated = make(env, env_kwargs=env_kwargs, **options)
    own_env = make_vec_env(env, n_envs=2, **env_kwargs)
    for seed, result in enumerate(expected):
        evaluate_policies(evaluated, own_env, n_episodes=3, deterministic=False, seed=seed or None)
        assert without_clock(evaluated.train_iteration()) == result
    assert same_weights(plain, evaluated)


class Steering(ScriptedEnv):
    """Observations are always the same; an action is two numbers."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2,), np.float32)


def test_noise_of_gsde_is_the_evaluations_own() -> None:
    algorithm = make(Steering, use_sde=True)
    algorithm.train_iteration()
    distribution = algorithm.policies["shared"].policy.action_dist
    noise = distribution.exploration_mat
    played = []
    for seed in (1, 1, 2):
        env = make_vec_env(Steering, n_envs=2)
        evaluate_policies(algorithm, env, n_episodes=2, deterministic=False, seed=seed)
        played.append([received[0]["a"].tolist() for received in env.call("received", [0, 1])])
    assert algorithm.policies["shared"].policy.action_dist is distribution
    assert distribution.exploration_mat is noise
    assert played[0] == played[1] != played[2]
    assert played[0][0] != played[0][1]  # noise of its own in each env


def test_generators_inside_follow_from_the_seed() -> None:
    def drawn(seed: int | None) -> list[float]:
        with preserve_training_state(algorithm, seed):
            return [float(th.rand(1)), np.random.random(), random.random()]  # noqa: NPY002

    algorithm = make()
    assert drawn(4) == drawn(4)
    assert not set(drawn(4)) & set(drawn(5))
    assert not set(drawn(None)) & set(drawn(None))


def test_the_envs_of_the_training_begin_new_episodes_afterwards() -> None:
    algorithm = make(env_kwargs={"script": {"a": (5, "truncated")}}, n_steps=7)
    algorithm.train_iteration()  # 2 steps into the second episode
    assert evaluate_policies(algorithm, algorithm.env, n_episodes=4)["episode_len_mean"] == 5.0
    result = algorithm.train_iteration()
    assert result["env_runners"]["episode_len_max"] == 5
    assert result["env_runners"]["num_episodes"] == 2  # of 5 steps each: the first of 7 was an episode's first
