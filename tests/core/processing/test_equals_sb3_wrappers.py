"""Normalisation and stacked frames equal stock SB3's `VecNormalize` and `VecFrameStack`, to the last bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize
from toy_envs import SampledEnv

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env

N_ENVS, N_STEPS, ITERATIONS = 2, 12, 3
NORMALIZE = {"normalize_observations": True, "normalize_rewards": True}


@dataclass(frozen=True)
class Case:
    """Our settings, and the wrappers of SB3 that mean the same."""

    ours: Mapping[str, Any]
    normalize: Mapping[str, Any] | None
    frames: int = 1
    env: Any = "Pendulum-v1"
    env_kwargs: Mapping[str, Any] = field(default_factory=lambda: {"max_episode_steps": 7})
    policy: str = "MlpPolicy"
    gamma: float = 0.9

    def wrapped(self, env: VecEnv) -> VecEnv:
        if self.normalize is not None:
            env = VecNormalize(env, gamma=self.gamma, **self.normalize)
        return VecFrameStack(env, self.frames) if self.frames > 1 else env


def sampled(observation_space: spaces.Space, **more: Any) -> Any:
    script = {"a": (5, "truncated")}
    return {"observation_space": observation_space, "action_space": spaces.Discrete(3), "script": script, **more}


DICT = spaces.Dict({"near": spaces.Box(-5, 5, (3,)), "far": spaces.Box(0, 900, (2,)), "mode": spaces.Discrete(3)})
IMAGE = spaces.Box(0, 255, (36, 36, 3), "uint8")
CASES = {
    "observations and rewards": Case(NORMALIZE, {}),
    "two agents that share a policy": Case(
        {"normalize_rewards": True}, {"norm_obs": False}, env="arena", env_kwargs={"max_timesteps": 7, "height": 4}
    ),
    "rewards alone": Case({"normalize_rewards": True}, {"norm_obs": False}),
    "observations alone": Case({"normalize_observations": True}, {"norm_reward": False}),
    "narrow limits": Case(
        {**NORMALIZE, "clip_observations": 0.5, "clip_normalized_rewards": 0.2, "normalize_epsilon": 0.1},
        {"clip_obs": 0.5, "clip_reward": 0.2, "epsilon": 0.1},
    ),
    "terminations": Case(NORMALIZE, {}, env="CartPole-v1", env_kwargs={}, gamma=0.99),
    "some keys of a Dict": Case(
        {**NORMALIZE, "normalize_keys": ["far"]}, {"norm_obs_keys": ["far"]}, env=SampledEnv, env_kwargs=sampled(DICT),
        policy="MultiInputPolicy",
    ),
    "frames": Case({"frame_stack": 3}, None, frames=3),
    "frames of normalised observations": Case({**NORMALIZE, "frame_stack": 3}, {}, frames=3),
    "frames of images": Case(
        {"frame_stack": 2}, None, frames=2, env=SampledEnv, env_kwargs=sampled(IMAGE), policy="CnnPolicy"
    ),
}  # fmt: skip


def settings(case: Case) -> dict[str, Any]:
    network = {"features_extractor_kwargs": {"features_dim": 4}} if case.policy == "CnnPolicy" else {"net_arch": [8]}
    return {"batch_size": 8, "n_epochs": 2, "learning_rate": 3e-3, "gamma": case.gamma, "policy_kwargs": network,
            "n_steps": N_STEPS}  # fmt: skip


def rollout(buffer: RolloutBuffer) -> dict[str, np.ndarray]:
    names = ("actions", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns")
    seen = buffer.observations if isinstance(buffer, DictRolloutBuffer) else {"": buffer.observations}
    arrays = {name: getattr(buffer, name) for name in names} | {f"seen {key}": array for key, array in seen.items()}
    return {name: array.astype(np.float64) for name, array in arrays.items()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rollouts_and_weights_equal_stock_sb3(case: Case) -> None:
    def envs() -> Any:
        return make_vec_env(case.env, n_envs=N_ENVS, **case.env_kwargs)

    spec = PolicySpec(stable_baselines3.PPO, case.policy, **settings(case), **case.ours)
    per_iteration = N_STEPS * N_ENVS
    ours = MultiAgentAlgorithm(envs(), {"p": spec}, seed=7, device="cpu").learn(ITERATIONS * per_iteration)
    stock = stable_baselines3.PPO(
        case.policy, case.wrapped(envs().as_sb3_vec_env()), seed=7, device="cpu", **settings(case)
    )
    stock.learn(ITERATIONS * per_iteration * stock.n_envs // N_ENVS)
    learner = ours.parts.learners["p"]
    expected, found = rollout(stock.rollout_buffer), rollout(learner.algorithm.rollout_buffer)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    weights, own = stock.policy.state_dict(), learner.algorithm.policy.state_dict()
    for name, tensor in weights.items():
        np.testing.assert_array_equal(own[name].numpy(), tensor.numpy(), err_msg=name)
    if isinstance(stock.get_env(), VecNormalize) and case.ours.get("normalize_rewards"):
        assert float(learner.processing.statistics["returns"].var) == float(stock.get_env().ret_rms.var)


def test_metrics_stay_the_envs_own_rewards() -> None:
    def returns(**processing: Any) -> Any:
        env = make_vec_env("Pendulum-v1", n_envs=2, max_episode_steps=6)
        algo = MultiAgentAlgorithm(env, n_steps=6, seed=1, device="cpu", batch_size=12, n_epochs=1, **processing)
        return algo.train_iteration()["env_runners"]["episode_return_mean"]

    assert returns() == returns(normalize_rewards=True) == returns(clip_rewards=0.1) < -1
