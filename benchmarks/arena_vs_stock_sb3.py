"""Compare marl_sb3 with stock SB3 on SuperSuit's vec env (as in PettingZoo's tutorial): env steps/s in the arena.

    python benchmarks/arena_vs_stock_sb3.py [--repeats 3] [--iterations 4] [--json FILE]

All sides train with the same hyperparameters and take turns in one process. The first iteration of each turn is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import stable_baselines3
import supersuit
import torch
from measure import Setting
from trainings import compare_trainings, iterations_per_s, sb3_iterations_per_s

from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.envs.arena import ArenaEnv

N_ENVS, N_STEPS = 20, 100
HYPERPARAMETERS: dict[str, Any] = {"n_steps": N_STEPS, "batch_size": 128, "n_epochs": 10, "learning_rate": 3e-4}
SETTING = Setting(
    what=f"arena, {N_ENVS} envs, networks 64x64",
    hyperparameters=HYPERPARAMETERS,
    threads="1 torch thread; marl_sb3 updates the policies of per_agent in parallel if there are two cores",
    changes={"A": "batched arena", "B": "fused networks, in rollouts and in updates"},
    packages=("marl_sb3", "stable-baselines3", "supersuit", "torch", "numpy"),
)


def stock_sb3(iterations: int, seed: int) -> float:
    """Measure `stable_baselines3.PPO` on SuperSuit's vec env, in env steps per second."""
    markov = supersuit.pettingzoo_env_to_vec_env_v1(ArenaEnv())
    env = supersuit.concat_vec_envs_v1(markov, N_ENVS, num_cpus=1, base_class="stable_baselines3")
    model = stable_baselines3.PPO("MlpPolicy", env, device="cpu", **HYPERPARAMETERS)
    model.set_random_seed = lambda seed=None: None  # type: ignore[method-assign]  # it calls env.seed, which SuperSuit lacks
    torch.manual_seed(seed)
    return N_STEPS * N_ENVS * sb3_iterations_per_s(model, iterations)


def ours(iterations: int, seed: int, policies: str = "shared") -> float:
    """Measure `MultiAgentAlgorithm`, in env steps per second."""
    env = make_vec_env("arena", n_envs=N_ENVS)
    algorithm = MultiAgentAlgorithm(env, policies, seed=seed, device="cpu", **HYPERPARAMETERS)
    return N_STEPS * N_ENVS * iterations_per_s(algorithm, iterations)


SIDES: dict[str, Callable[[int, int], float]] = {
    "stock SB3 + SuperSuit, one shared policy": stock_sb3,
    "marl_sb3, one shared policy": ours,
    "marl_sb3, one policy per agent": lambda iterations, seed: ours(iterations, seed, "per_agent"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the median, the range and the ratio of each side."""
    compare_trainings("arena_vs_stock_sb3", __doc__, SETTING, SIDES, 4, argv)


if __name__ == "__main__":
    main()
