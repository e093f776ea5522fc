"""Per-agent metrics while stock SB3 trains."""

from __future__ import annotations

import pytest
import stable_baselines3
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import VecMonitor

from marl_sb3 import ConfigError, MultiAgentAlgorithm, make_vec_env
from marl_sb3.callbacks import AgentMetricsCallback
from marl_sb3.core.metrics.names import flatten

SIZES = {"n_steps": 30, "batch_size": 60, "n_epochs": 1}


class Kept(KVWriter):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def write(self, key_values: dict, key_excluded: dict, step: int = 0) -> None:
        self.rows.append(dict(key_values))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("monitored", [False, True])
def test_stock_ppo_logs_the_metrics_that_the_joint_loop_has(monitored: bool) -> None:
    rows = make_vec_env("arena", n_envs=2, max_timesteps=7).as_sb3_vec_env()
    env = VecMonitor(rows) if monitored else rows
    model = stable_baselines3.PPO("MlpPolicy", env, seed=5, device="cpu", **SIZES)
    kept = Kept()
    model.set_logger(Logger(None, [kept]))
    model.learn(2 * 30 * 2 * 2, callback=AgentMetricsCallback())

    algorithm = MultiAgentAlgorithm(make_vec_env("arena", n_envs=2, max_timesteps=7), seed=5, device="cpu", **SIZES)
    algorithm.learn(2 * 30 * 2)
    expected = {
        name: value
        for name, value in flatten(algorithm.tracker.summary(), "env_runners/").items()
        if "duration" not in name
    }
    assert expected["env_runners/custom_metrics/new_fields_discovered_mean"] > 0
    assert {name: kept.rows[-1][name] for name in expected} == expected


def test_an_env_without_agents_is_refused() -> None:
    model = stable_baselines3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, device="cpu")
    with pytest.raises(ConfigError, match="the training env is DummyVecEnv; accepted: that of as_sb3_vec_env"):
        model.learn(60, callback=AgentMetricsCallback())
