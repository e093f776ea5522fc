"""Train by stock SB3 and by `MultiAgentAlgorithm` in the same env from the same seed, for tests that compare both."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import stable_baselines3
import torch as th
from gymnasium import spaces
from toy_envs import SampledEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentVecEnv, PolicySpec, make_vec_env
from marl_sb3.core.envs.registry import EnvFactory

SEED = 7
N_ENVS = 2
N_STEPS = 12
SMALL = {"batch_size": 16, "n_epochs": 2, "learning_rate": 3e-3, "policy_kwargs": {"net_arch": [8]}}


@dataclass
class Case:
    """What is trained; SB3's own settings where they are written differently; `small` is what all cases share."""

    env: str | EnvFactory = "arena"
    env_kwargs: Mapping[str, Any] = field(default_factory=lambda: {"max_timesteps": 7, "height": 4})
    policy: str = "MlpPolicy"
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    stock: Mapping[str, Any] = field(default_factory=dict)
    n_steps: int = N_STEPS
    iterations: float = 2
    small: Mapping[str, Any] = field(default_factory=lambda: SMALL)


def counts_of(algorithm: Any) -> tuple[int, int]:
    """The steps and the gradient steps or passes that an algorithm of SB3 counts."""
    return algorithm.num_timesteps, algorithm._n_updates


def sampled(observation_space: spaces.Space, action_space: spaces.Space, **options: Any) -> Case:
    """A toy env with two agents, truncated and terminated at once, so that no row ever idles."""
    script = {"a": (5, "truncated"), "b": (5, "terminated")}
    env_kwargs = {"observation_space": observation_space, "action_space": action_space, "script": script}
    return Case(SampledEnv, env_kwargs, **options)


BOX = spaces.Box(-1, 1, (3,))
IMAGE = spaces.Box(0, 255, (36, 36, 3), "uint8")
MIXED = spaces.Dict({"image": IMAGE, "mode": spaces.Discrete(4), "vector": BOX})
TINY_CNN = {"policy_kwargs": {"features_extractor_kwargs": {"features_dim": 4}}}
TINY_MIX = {"policy_kwargs": {"features_extractor_kwargs": {"cnn_output_dim": 4}, "net_arch": [4]}}


def env_of(case: Case) -> MultiAgentVecEnv:
    return make_vec_env(case.env, n_envs=N_ENVS, **case.env_kwargs)


def stock_model(case: Case, algorithm: type = stable_baselines3.PPO) -> Any:
    settings = deepcopy({**case.small, "n_steps": case.n_steps, **case.hyperparameters, **case.stock})  # A2C changes it
    env = env_of(case).as_sb3_vec_env()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You have specified a mini-batch size")
        return algorithm(case.policy, env, seed=SEED, device="cpu", **settings)


def train_stock(model: Any, case: Case) -> Any:
    return model.learn(int(case.iterations * case.n_steps) * model.n_envs)


def train_ours(case: Case, algorithm: type) -> MultiAgentAlgorithm:
    spec = PolicySpec(algorithm, case.policy, **{**case.small, **case.hyperparameters})
    ours = MultiAgentAlgorithm(env_of(case), {"p": spec}, n_steps=case.n_steps, seed=SEED, device="cpu")
    return ours.learn(int(case.iterations * case.n_steps) * N_ENVS)


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """Every tensor and number of nested dictionaries and lists, by its path."""
    if isinstance(tree, (Mapping, list, tuple)):
        items = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        return {name: leaf for key, value in items for name, leaf in leaves(value, f"{path}/{key}").items()}
    return {path: tree}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, th.Tensor):
        return bool(one.dtype == other.dtype and th.equal(one, other))
    return bool(one == other)


def assert_close(found: Any, stock: Any, tolerance: float) -> None:
    """Weights and the optimizer's tensors are equal up to a relative error; all other numbers are equal."""
    parameters = leaves(found.get_parameters())
    for path, expected in leaves(stock.get_parameters()).items():
        if isinstance(expected, th.Tensor):
            error = (parameters[path] - expected).norm() / expected.norm().clamp_min(1e-8)
            assert error < tolerance, f"{path}: {error}"
        else:
            assert parameters[path] == expected, path
