"""Compare stock SB3's PPO, `marl_sb3.PPO` and `MultiAgentAlgorithm` with one agent: env steps/s in CartPole-v1.

    python benchmarks/cartpole_vs_stock_sb3.py [--repeats 3] [--iterations 2] [--json FILE]

Rollouts and updates are both timed. The sides take turns in one process; the first iteration of each turn is not
counted. The first two sides use SB3's `DummyVecEnv` and differ only in the class of the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import stable_baselines3
from measure import Setting
from stable_baselines3.common.env_util import make_vec_env as make_sb3_vec_env
from trainings import compare_trainings, iterations_per_s, sb3_iterations_per_s

import marl_sb3

ENV, N_ENVS, N_STEPS = "CartPole-v1", 8, 500
HYPERPARAMETERS: dict[str, Any] = {
    "n_steps": N_STEPS,
    "batch_size": 128,
    "n_epochs": 5,
    "policy_kwargs": {"net_arch": [256, 256]},
}
SETTING = Setting(
    what=f"{ENV}, {N_ENVS} envs",
    hyperparameters=HYPERPARAMETERS,
    threads="1 torch thread",
    changes={"A": "the loop of the rollout", "B": "fused networks, in rollouts and in updates"},
    packages=("marl_sb3", "stable-baselines3", "torch", "numpy", "gymnasium"),
)


def with_sb3_loop(ppo: type[stable_baselines3.PPO], iterations: int, seed: int) -> float:
    """Measure a PPO class on SB3's `DummyVecEnv`, in env steps per second."""
    env = make_sb3_vec_env(ENV, n_envs=N_ENVS, seed=seed)
    model = ppo("MlpPolicy", env, seed=seed, device="cpu", **HYPERPARAMETERS)
    return N_STEPS * N_ENVS * sb3_iterations_per_s(model, iterations)


def with_joint_loop(iterations: int, seed: int) -> float:
    """Measure `MultiAgentAlgorithm` with one agent, in env steps per second."""
    env = marl_sb3.make_vec_env(ENV, n_envs=N_ENVS)
    algorithm = marl_sb3.MultiAgentAlgorithm(env, seed=seed, device="cpu", **HYPERPARAMETERS)
    return N_STEPS * N_ENVS * iterations_per_s(algorithm, iterations)


SIDES: dict[str, Callable[[int, int], float]] = {
    "stable_baselines3.PPO": lambda iterations, seed: with_sb3_loop(stable_baselines3.PPO, iterations, seed),
    "marl_sb3.PPO, same DummyVecEnv": lambda iterations, seed: with_sb3_loop(marl_sb3.PPO, iterations, seed),
    "MultiAgentAlgorithm, one agent": with_joint_loop,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the median, the range and the ratio of each side."""
    compare_trainings("cartpole_vs_stock_sb3", __doc__, SETTING, SIDES, 2, argv)


if __name__ == "__main__":
    main()
