"""gSDE with agents that end early: every row keeps its own noise, whoever acts beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import SampledEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentVecEnv, make_vec_env
from marl_sb3.evaluation import play_episodes

SEEN_ALWAYS = spaces.Box(0.5, 0.5, (3,))  # the noise is all that changes an action
STEPS = 6
ENDS_EARLY = {"a": (3, "terminated"), "b": (STEPS, "truncated")}


def algorithm_of(env: MultiAgentVecEnv, **options: Any) -> MultiAgentAlgorithm:
    settings = {"n_steps": STEPS, "batch_size": 3, "n_epochs": 1, "seed": 0, "device": "cpu", "use_sde": True}
    network = {"net_arch": [4], "log_std_init": 0.0, "squash_output": True}
    return MultiAgentAlgorithm(env, **settings, policy_kwargs=network, **options)


def envs(n_envs: int) -> MultiAgentVecEnv:
    return make_vec_env(
        SampledEnv,
        n_envs=n_envs,
        seed=0,
        observation_space=SEEN_ALWAYS,
        action_space=spaces.Box(-1, 1, (2,)),
        script=ENDS_EARLY,
    )


def actions_by_row(env: Any) -> dict[tuple[int, str], np.ndarray]:
    """(steps, action size) of each (env, agent), in the first episode."""
    received = env.call("received", range(env.num_envs))
    return {
        (index, agent): np.stack([actions[agent] for actions in steps[:STEPS] if agent in actions])
        for index, steps in enumerate(received)
        for agent in ENDS_EARLY
    }


def require_noise_per_row(actions: dict[tuple[int, str], np.ndarray]) -> None:
    for row, taken in actions.items():
        np.testing.assert_allclose(taken, np.tile(taken[0], (len(taken), 1)), atol=1e-6, err_msg=str(row))
    firsts = np.stack([taken[0] for taken in actions.values()])
    assert len(np.unique(firsts.round(4), axis=0)) == len(actions)


@pytest.mark.parametrize("n_envs", [1, 3])  # 1: a batch of one row is left
def test_rows_keep_their_noise_in_a_rollout_when_an_agent_ends(n_envs: int) -> None:
    env = envs(n_envs)
    algorithm_of(env).train_iteration()
    actions = actions_by_row(env)
    assert [len(taken) for taken in actions.values()] == [3, STEPS] * n_envs
    require_noise_per_row(actions)


def test_rows_keep_their_noise_in_an_evaluation_when_an_agent_ends() -> None:
    algorithm, env = algorithm_of(envs(1)), envs(3)
    play_episodes(algorithm, env, n_episodes=3, deterministic=False, seed=0)
    require_noise_per_row(actions_by_row(env))


@pytest.mark.parametrize("evaluated", [False, True])
def test_noise_is_drawn_anew_for_every_row_as_often_as_asked(evaluated: bool) -> None:
    env = envs(2)
    algorithm = algorithm_of(envs(2) if evaluated else env, sde_sample_freq=4)
    if evaluated:
        play_episodes(algorithm, env, n_episodes=2, deterministic=False, seed=0)
    else:
        algorithm.train_iteration()
    for taken in actions_by_row(env).values():
        np.testing.assert_allclose(taken[:4], np.tile(taken[0], (len(taken[:4]), 1)), atol=1e-6)
        if len(taken) > 4:
            assert np.abs(taken[4] - taken[3]).max() > 1e-3
            np.testing.assert_allclose(taken[5], taken[4], atol=1e-6)
