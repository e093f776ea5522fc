"""Algorithms with a replay buffer train as in stock SB3, whatever the spaces and the hyperparameters.

On PyTorch's path bit for bit, on the fused path to floating-point tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stock_training import BOX, IMAGE, MIXED, TINY_CNN, TINY_MIX, counts_of, leaves, same
from toy_envs import SampledEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentVecEnv, PolicySpec, make_vec_env
from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.core.config.settings import ProcessingSettings

SEED = 7
SMALL = {
    "learning_starts": 10,
    "batch_size": 8,
    "buffer_size": 40,
    "learning_rate": 1e-2,
    "policy_kwargs": {"net_arch": [8]},
}


@dataclass
class Case:
    """What is trained; SB3's own settings where they are written differently."""

    algorithm: str
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    env: Any = "CartPole-v1"
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    n_envs: int = 1
    policy: str = "MlpPolicy"
    stock: Mapping[str, Any] = field(default_factory=dict)
    normalize: Mapping[str, Any] | None = None  # arguments of VecNormalize
    steps: int = 60  # agent steps of each row; all rollouts end with it, and the replay buffer has begun anew

    def envs(self) -> MultiAgentVecEnv:
        return make_vec_env(self.env, n_envs=self.n_envs, **self.env_kwargs)


ENDS_TOGETHER = {"a": (5, "truncated"), "b": (5, "terminated")}


def sampled(algorithm: str, seen: spaces.Space, done: spaces.Space, **options: Any) -> Case:
    """A toy env with two agents, truncated and terminated at once, so that no row ever idles."""
    env_kwargs = {"observation_space": seen, "action_space": done, "script": ENDS_TOGETHER}
    return Case(algorithm, env=SampledEnv, env_kwargs=env_kwargs, n_envs=2, **options)


TARGETS = {"target_update_interval": 12, "exploration_fraction": 0.7}
CHOICE = spaces.Discrete(3)
NORMALIZE = {"normalize_observations": True, "normalize_rewards": True}
NO_TIMEOUTS = {"handle_timeout_termination": False}


def goals(algorithm: str, *, continuous: bool, strategy: str = "future", **hyperparameters: Any) -> Case:
    """SB3's own env with goals, in which an episode is over when learning starts: stock SB3 fails otherwise."""
    goals = {"n_sampled_goal": 2, "goal_selection_strategy": strategy}  # 5 of the 8 rows of a batch get new goals
    settings = {"replay_buffer_class": "HerReplayBuffer", "replay_buffer_kwargs": goals, "learning_starts": 20}
    return Case(
        algorithm,
        {**settings, **hyperparameters},
        BitFlippingEnv,
        {"n_bits": 4, "continuous": continuous, "max_steps": 9},
        n_envs=2,
        policy="MultiInputPolicy",
        stock={"replay_buffer_class": HerReplayBuffer},
    )


CASES = {
    "DQN": Case("dqn", TARGETS),
    "DQN, 4 envs": Case("dqn", {**TARGETS, "train_freq": 2, "gradient_steps": 3}, n_envs=4),
    "DQN, as many gradient steps as agent steps": Case("dqn", {**TARGETS, "gradient_steps": -1}, n_envs=2),
    "DQN, two agents, time limits": Case("dqn", TARGETS, "arena", {"max_timesteps": 7, "height": 4}, n_envs=2),
    "DQN, time limits as ends": Case(
        "dqn",
        {**TARGETS, "replay_buffer_kwargs": {"handle_timeout_termination": False}},
        "arena",
        {"max_timesteps": 7, "height": 4},
        n_envs=2,
    ),
    "DQN, schedule and soft targets": Case(
        "dqn",
        {"learning_rate": "lin_1e-2", "tau": 0.1, "target_update_interval": 1, "gamma": 0.8},
        stock={"learning_rate": LinearSchedule(1e-2, 0, 1)},
    ),
    "DQN, Dict observations": sampled(
        "dqn", MIXED, CHOICE, policy="MultiInputPolicy", hyperparameters={**TARGETS, **TINY_MIX}
    ),
    "DQN, images": sampled("dqn", IMAGE, CHOICE, policy="CnnPolicy", hyperparameters={**TARGETS, **TINY_CNN}),
    "DQN, Discrete observations": sampled("dqn", spaces.Discrete(5), CHOICE, hyperparameters=TARGETS),
    "DQN, n-step returns": Case("dqn", {**TARGETS, "n_steps": 3}, "arena", {"max_timesteps": 7, "height": 4}, n_envs=2),
    "DQN, each observation once": sampled(
        "dqn",
        BOX,
        CHOICE,
        hyperparameters={**TARGETS, "optimize_memory_usage": True, "replay_buffer_kwargs": NO_TIMEOUTS},
    ),
}


def pendulum(algorithm: str, n_envs: int = 1, **hyperparameters: Any) -> Case:
    hyperparameters = {"buffer_size": 20, **hyperparameters}
    return Case(algorithm, hyperparameters, "Pendulum-v1", {"max_episode_steps": 15}, n_envs, steps=30)


CASES |= {
    "DQN, after episodes": Case(
        "dqn",
        {**TARGETS, "train_freq": [2, "episode"], "gradient_steps": -1},
        SampledEnv,
        {"observation_space": BOX, "action_space": CHOICE, "script": {"a": (5, "truncated")}},
        stock={"train_freq": (2, "episode")},
    ),
    "QRDQN": Case("qrdqn", {**TARGETS, "policy_kwargs": {"net_arch": [8], "n_quantiles": 5}}, n_envs=2),
    "SAC": pendulum("sac"),
    "SAC, 4 envs": pendulum("sac", 4, train_freq=2, gradient_steps=-1),
    "SAC, after episodes": replace(
        pendulum("sac", train_freq=[1, "episode"], gradient_steps=-1), stock={"train_freq": (1, "episode")}
    ),
    "SAC, gSDE": pendulum("sac", 2, use_sde=True, sde_sample_freq=4, train_freq=6, gradient_steps=2),
    "SAC, gSDE from the beginning": pendulum(
        "sac", 2, use_sde=True, use_sde_at_warmup=True, train_freq=6, ent_coef="auto_0.1", gradient_steps=2
    ),
    "SAC, n-step returns": pendulum("sac", 2, n_steps=4, gradient_steps=2),
    "SAC, given entropy coefficient": pendulum("sac", ent_coef=0.2, target_update_interval=3),
    "SAC, two agents, Box actions of two axes": sampled("sac", BOX, spaces.Box(-0.5, 1.5, (2, 2))),
    "TD3": pendulum("td3"),
    "TD3, noise": replace(
        pendulum("td3", action_noise={"normal": 0.3}),
        stock={"action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.3))},
    ),
    "TD3, noise with memory in 3 envs": replace(
        pendulum("td3", 3, action_noise={"ornstein_uhlenbeck": 0.5}, policy_delay=1),
        stock={"action_noise": OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.5))},
    ),
    "DDPG": pendulum("ddpg", 2),
    "TQC": pendulum("tqc", 2, top_quantiles_to_drop_per_net=1),
    "TQC, gSDE": pendulum("tqc", use_sde=True),
    "CrossQ": pendulum("crossq", 2),
    "SAC, normalised": replace(pendulum("sac", 2, **NORMALIZE), normalize={}),
    "TD3, normalised n-step returns with narrow limits": replace(
        pendulum("td3", 2, **NORMALIZE, n_steps=3, clip_observations=0.5, clip_normalized_rewards=0.2),
        normalize={"clip_obs": 0.5, "clip_reward": 0.2},
    ),
    "DQN, normalised rewards of two agents": Case(
        "dqn",
        {**TARGETS, "normalize_rewards": True, "gamma": 0.9},
        "arena",
        {"max_timesteps": 7, "height": 4},
        n_envs=2,
        normalize={"norm_obs": False, "gamma": 0.9},
    ),
    "DQN, normalised observations of float64": replace(
        sampled(
            "dqn",
            spaces.Box(-5, 900, (3,), np.float64),
            CHOICE,
            hyperparameters={**TARGETS, "normalize_observations": True},
        ),
        normalize={"norm_reward": False},
    ),
    "DQN, goals, normalised": replace(
        goals("dqn", continuous=False, normalize_rewards=True, **TARGETS), normalize={"norm_obs": False}
    ),
    "DQN, goals": goals("dqn", continuous=False, **TARGETS),
    "SAC, goals at the end": goals("sac", continuous=True, strategy="final"),
    "TD3, goals of the episode": goals("td3", continuous=True, strategy="episode"),
}
COLUMNS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "ep_start", "ep_length")


def train_ours(case: Case, update_path: str) -> Any:
    spec = PolicySpec(algorithm_info(case.algorithm).algorithm_class, case.policy, **{**SMALL, **case.hyperparameters})
    ours = MultiAgentAlgorithm(
        case.envs(), {"p": spec}, n_steps=case.steps // 2, seed=SEED, device="cpu", update_path=update_path
    )
    before = {
        path: th.clone(leaf)
        for path, leaf in leaves(ours.policies["p"].get_parameters()).items()
        if isinstance(leaf, th.Tensor)
    }
    ours.learn(case.steps * case.n_envs)
    return before, ours.policies["p"]


@cache
def train_stock(name: str) -> Any:
    case = CASES[name]
    settings = deepcopy({**SMALL, **case.hyperparameters, **case.stock})  # SB3 writes into policy_kwargs
    settings = {name: value for name, value in settings.items() if name not in ProcessingSettings.kinds()}
    env: VecEnv = case.envs().as_sb3_vec_env()
    if case.normalize is not None:
        env = VecNormalize(env, **case.normalize)
    named = algorithm_info(case.algorithm).algorithm_class
    stock: Any = next(base for base in named.__mro__ if not base.__module__.startswith("marl_sb3"))
    return stock(case.policy, env, seed=SEED, device="cpu", **settings).learn(case.steps * env.num_envs)


@pytest.mark.parametrize("name", CASES)
def test_weights_optimizers_and_replay_equal_those_of_stock_sb3(name: str) -> None:
    before, ours = train_ours(CASES[name], "torch")
    stock = train_stock(name)
    expected, found = leaves(stock.get_parameters()), leaves(ours.get_parameters())
    assert expected.keys() == found.keys()
    assert [path for path in expected if not same(expected[path], found[path])] == []
    assert not any(same(before[path], found[path]) for path in before if path.endswith("weight"))
    assert counts_of(ours) == counts_of(stock)
    assert counts_of(ours)[1] >= 4
    assert (ours.replay_buffer.pos, ours.replay_buffer.full) == (stock.replay_buffer.pos, stock.replay_buffer.full)
    columns = [name for name in vars(ours.replay_buffer) if name in COLUMNS]
    assert columns == [name for name in vars(stock.replay_buffer) if name in COLUMNS]
    for column in columns:
        own, theirs = getattr(ours.replay_buffer, column), getattr(stock.replay_buffer, column)
        for key in theirs if isinstance(theirs, dict) else [...]:
            np.testing.assert_array_equal(own[key], theirs[key], err_msg=f"{column} {key}")
    assert getattr(ours, "exploration_rate", 0) == getattr(stock, "exploration_rate", 0)


NOT_FUSED = ("Dict", "images", "goals", "gSDE", "CrossQ")


@pytest.mark.parametrize("name", [name for name in CASES if not any(word in name for word in NOT_FUSED)])
def test_fused_training_stays_within_rounding_of_stock_sb3(name: str) -> None:
    """All weights and targets, after up to 60 updates: within 1e-4 of the distance that PyTorch's have moved."""
    before, ours = train_ours(CASES[name], "fused")
    stock = train_stock(name)
    expected, found = leaves(stock.get_parameters()), leaves(ours.get_parameters())
    assert expected.keys() == found.keys()
    for path in before:
        moved = (expected[path] - before[path]).norm()
        assert (found[path] - expected[path]).norm() <= 1e-4 * moved, path
    assert counts_of(ours) == counts_of(stock)
    assert (ours.replay_buffer.pos, ours.replay_buffer.full) == (stock.replay_buffer.pos, stock.replay_buffer.full)
    np.testing.assert_allclose(ours.replay_buffer.observations, stock.replay_buffer.observations, atol=1e-4)
