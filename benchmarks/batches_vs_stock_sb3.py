"""Compare envs that come as batches with stock SB3 on its own vec envs: env steps/s of random steps, and of PPO.

    python benchmarks/batches_vs_stock_sb3.py [--cases CartPole-v1,HalfCheetah-v5,Pong-v5] [--repeats 3] [--json FILE]

CartPole-v1 is a vector env of Gymnasium, beside SB3's `DummyVecEnv`. The other cases are EnvPool's and need
`pip install envpool ale-py opencv-python 'gymnasium[mujoco]'`: its HalfCheetah-v4 is beside Gymnasium's v5, and its
Pong beside SB3's `AtariWrapper` with four stacked frames, both in SB3's `SubprocVecEnv`. The sides take turns, and each
has all cores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from command_line import add_count, add_names, parser
from measure import Comparison, Report, Setting, cores, take_turns
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.env_util import make_vec_env as make_sb3_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecFrameStack
from trainings import iterations_per_s, sb3_iterations_per_s

import marl_sb3

N_ENVS, N_STEPS = 8, 128
DRAWS = 16  # random actions of all envs, which are taken in turn
HYPERPARAMETERS: dict[str, Any] = {"n_steps": N_STEPS, "batch_size": 256, "n_epochs": 4}
STOCK, OURS = "stock SB3", "marl_sb3"
SETTING = Setting(
    what=f"{N_ENVS} envs",
    hyperparameters=HYPERPARAMETERS,
    threads="stock SB3: as many as it starts; marl_sb3: 1, or one for each core with images, as SB3 does",
    changes={"A": "the batch of envs, and the loop of the rollout", "B": "fused networks where there are no images"},
    packages=("marl_sb3", "stable-baselines3", "torch", "numpy", "gymnasium"),
)


@dataclass(frozen=True)
class Case:
    """An env on both sides."""

    batch: str  # id of marl_sb3's
    stock: Callable[[], VecEnv]  # makes SB3's vec env
    policy: str = "MlpPolicy"


def _pong(**arguments: Any) -> gymnasium.Env[Any, Any]:
    gymnasium.register_envs(import_module("ale_py"))  # in each process
    return gymnasium.make("PongNoFrameskip-v4", **arguments)


def _atari() -> VecEnv:
    return VecFrameStack(make_atari_env(_pong, N_ENVS, vec_env_cls=SubprocVecEnv), 4)


CASES: Mapping[str, Case] = {
    "CartPole-v1": Case(
        "vector/CartPole-v1", partial(make_sb3_vec_env, "CartPole-v1", N_ENVS, vec_env_cls=DummyVecEnv)
    ),
    "HalfCheetah-v5": Case(
        "envpool/HalfCheetah-v4", partial(make_sb3_vec_env, "HalfCheetah-v5", N_ENVS, vec_env_cls=SubprocVecEnv)
    ),
    "Pong-v5": Case("envpool/Pong-v5", _atari, "CnnPolicy"),
}


def stock_steps(case: Case, steps: int, seed: int) -> float:
    """Measure SB3's vec env alone, in env steps per second."""
    env = case.stock()
    env.seed(seed)
    actions = [np.stack([env.action_space.sample() for _ in range(N_ENVS)]) for _ in range(DRAWS)]
    return _per_s(env, lambda number: env.step(actions[number % DRAWS]), steps)


def our_steps(case: Case, steps: int, seed: int) -> float:
    """Measure marl_sb3's vec env alone, in env steps per second."""
    env = marl_sb3.make_vec_env(case.batch, N_ENVS, seed=seed)
    space = env.groups[0].action_space
    actions = [[np.stack([[space.sample()] for _ in range(N_ENVS)])] for _ in range(DRAWS)]
    return _per_s(env, lambda number: env.step(actions[number % DRAWS]), steps)


def _per_s(env: Any, step: Callable[[int], Any], steps: int) -> float:
    env.reset()
    for number in range(DRAWS):  # not counted: threads start
        step(number)
    begun_s = time.perf_counter()
    for number in range(steps):
        step(number)
    taken_s = time.perf_counter() - begun_s
    env.close()
    return steps * N_ENVS / taken_s


def stock_training(case: Case, iterations: int, seed: int) -> float:
    """Measure SB3's PPO, in env steps per second."""
    env = case.stock()
    model = PPO(case.policy, env, seed=seed, device="cpu", **HYPERPARAMETERS)
    try:
        return N_STEPS * N_ENVS * sb3_iterations_per_s(model, iterations)
    finally:
        env.close()


def our_training(case: Case, iterations: int, seed: int) -> float:
    """Measure `MultiAgentAlgorithm` with one agent, in env steps per second."""
    env = marl_sb3.make_vec_env(case.batch, N_ENVS, seed=seed)
    specs = {"policy": marl_sb3.PolicySpec(policy=case.policy, **HYPERPARAMETERS)}
    n_threads = cores() if case.policy == "CnnPolicy" else 1  # small networks are slower with more
    algorithm = marl_sb3.MultiAgentAlgorithm(env, specs, seed=seed, device="cpu", n_threads=n_threads)
    try:
        return N_STEPS * N_ENVS * iterations_per_s(algorithm, iterations)
    finally:
        env.close()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print two tables for each case."""
    options = parser(__doc__)
    add_names(options, "--cases", CASES)
    add_count(options, "--steps", 1000, "steps of all envs, without training")
    add_count(options, "--iterations", 3, "iterations of a training")
    arguments = options.parse_args(argv)
    SETTING.print()
    results = {}
    for name in arguments.cases:
        case = CASES[name]
        sides = {"steps": (stock_steps, our_steps, arguments.steps)}
        sides["PPO"] = (stock_training, our_training, arguments.iterations)
        for what, (stock, ours, much) in sides.items():
            both = {STOCK: partial(stock, case, much), OURS: partial(ours, case, much)}
            found = Comparison("env steps per second", take_turns(both, arguments.repeats, f"{name}, {what}"), STOCK)
            print(f"{name}, {what}")
            found.print()
            results[f"{name}-{what}"] = found.facts()
    Report("batches_vs_stock_sb3", SETTING, results).write(arguments.json)


if __name__ == "__main__":
    main()
