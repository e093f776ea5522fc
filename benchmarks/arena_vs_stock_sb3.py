"""Env steps per second on the arena: marl_sb3 next to stock SB3 with SuperSuit, as PettingZoo's tutorial couples them.

    python benchmarks/arena_vs_stock_sb3.py [--repeats 3] [--iterations 4] [--json FILE]

All sides train at the same hyperparameters in one process, in turns, with one torch thread; marl_sb3 updates the two
policies of `per_agent` in two threads if there are two cores. The first iteration of each turn is not counted.
What differs: A (bit-exact: the batched arena) and B (equal to floating point tolerance: the fused update).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import stable_baselines3
import supersuit
import torch
from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.envs.arena import ArenaEnv

N_ENVS, N_STEPS = 20, 100
HYPERPARAMETERS = {"n_steps": N_STEPS, "batch_size": 128, "n_epochs": 10, "learning_rate": 3e-4}
AGENTS = 2


class _Clock(BaseCallback):
    """When each rollout of stock SB3 began."""

    def __init__(self) -> None:
        super().__init__()
        self.begun_s: list[float] = []

    def _on_rollout_start(self) -> None:
        self.begun_s.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True


def stock_sb3(iterations: int, seed: int) -> float:
    """Env steps per second of `stable_baselines3.PPO` on SuperSuit's vec env."""
    markov = supersuit.pettingzoo_env_to_vec_env_v1(ArenaEnv())
    env = supersuit.concat_vec_envs_v1(markov, N_ENVS, num_cpus=1, base_class="stable_baselines3")
    model = stable_baselines3.PPO("MlpPolicy", env, device="cpu", **HYPERPARAMETERS)
    model.set_random_seed = lambda seed=None: None  # it asks for env.seed, which SuperSuit does not have
    torch.manual_seed(seed)
    clock = _Clock()
    model.learn((iterations + 1) * N_STEPS * N_ENVS * AGENTS, callback=clock)
    return iterations * N_STEPS * N_ENVS / (time.perf_counter() - clock.begun_s[1])


def ours(iterations: int, seed: int, policies: str = "shared") -> float:
    """Env steps per second of `MultiAgentAlgorithm`."""
    env = make_vec_env("arena", n_envs=N_ENVS)
    algorithm = MultiAgentAlgorithm(env, policies, seed=seed, device="cpu", **HYPERPARAMETERS)
    algorithm.train_iteration()
    started_s = time.perf_counter()
    for _ in range(iterations):
        algorithm.train_iteration()
    return iterations * N_STEPS * N_ENVS / (time.perf_counter() - started_s)


BASE = "stock SB3 + SuperSuit"
SIDES: dict[str, Callable[[int, int], float]] = {
    BASE: stock_sb3,
    "marl_sb3, shared": ours,
    "marl_sb3, per agent": lambda iterations, seed: ours(iterations, seed, "per_agent"),
}


def main() -> None:
    """Measure in turns and print medians, spread and ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side; default: 3")
    parser.add_argument("--iterations", type=int, default=4, help="counted iterations in a turn; default: 4")
    parser.add_argument("--json", type=Path, help="also write the figures to this file; default: no file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="You have specified a mini-batch size")  # 128 does not divide 4,000
    rates: dict[str, list[float]] = {name: [] for name in SIDES}
    for repeat in range(arguments.repeats):
        for name, side in SIDES.items():
            rates[name].append(side(arguments.iterations, repeat))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"arena, {N_ENVS} envs, {os.cpu_count()} cores, 1 torch thread, {HYPERPARAMETERS}")
    print(f"torch {torch.__version__}, stable-baselines3 {stable_baselines3.__version__}, {platform.machine()}")
    for name, values in rates.items():
        print(
            f"{name:>24}: {medians[name]:8,.0f} env steps/s  (from {min(values):,.0f} to {max(values):,.0f})  "
            f"{medians[name] / medians[BASE]:5.1f} x"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"env_steps_per_s": rates, "hyperparameters": HYPERPARAMETERS}, indent=1))


if __name__ == "__main__":
    main()
