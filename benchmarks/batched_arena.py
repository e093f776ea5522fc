"""Measure how many env steps per second the batched arena takes on one core, without training.

    python benchmarks/batched_arena.py [--seconds 1.0] [--json FILE]

Actions are random and drawn beforehand. "batched env" is `BatchedArena` alone, with resets and seeds. "vec env" is what
`make_vec_env` returns, which also handles checks, endings, infos and final observations.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from command_line import parser
from measure import Report, Setting

from marl_sb3 import make_vec_env
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.envs.arena.compiled import BatchedArena
from marl_sb3.types import Array

SETTING = Setting(
    what="arena, random actions, no training",
    hyperparameters={},
    threads="1",
    changes={"A": "envs as arrays"},
    packages=("marl_sb3", "numpy"),
)
NUM_ENVS = (1, 4, 16, 64, 256, 1024, 4096)


def vec_env(num_envs: int) -> Callable[[Array], object]:
    """Return a function that steps the vec env."""
    env = make_vec_env("arena", n_envs=num_envs, seed=0)
    env.reset()
    return lambda actions: env.step((actions,))


def batched_env(num_envs: int) -> Callable[[Array], object]:
    """Return a function that steps the batched env, observes, and resets all envs after their last step."""
    env = BatchedArena(num_envs, ArenaEnv())
    every, episodes = list(range(num_envs)), itertools.count()

    def reset() -> None:
        episode = next(episodes)
        env.reset(every, [episode_seed(0, index, episode) for index in every])

    def step(actions: Array) -> object:
        if env.step(actions).truncated[0, 0]:
            reset()
        return env.observations()

    reset()
    return step


def env_steps_per_s(step: Callable[[Array], object], num_envs: int, seconds: float) -> list[float]:
    """Measure three times."""
    actions = np.random.default_rng(0).integers(0, 4, (100, num_envs, 2))
    rates = []
    for _ in range(3):
        steps, started_s = 0, time.perf_counter()
        while time.perf_counter() - started_s < seconds / 3:
            for action in actions:
                step(action)
            steps += len(actions) * num_envs
        rates.append(steps / (time.perf_counter() - started_s))
    return rates


SIDES = {"batched env": batched_env, "vec env": vec_env}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a line for each number of envs."""
    options = parser(__doc__, repeats=None)
    options.add_argument(
        "--seconds", type=float, default=1.0, metavar="S", help="seconds for each number of envs; default: 1.0"
    )
    arguments = options.parse_args(argv)
    results: dict[str, Any] = {}
    for num_envs in NUM_ENVS:
        raw = {name: env_steps_per_s(make(num_envs), num_envs, arguments.seconds) for name, make in SIDES.items()}
        rates = {name: statistics.median(figures) for name, figures in raw.items()}
        shown = ", ".join(f"{name} {rate:10,.0f}" for name, rate in rates.items())
        print(f"{num_envs:5d} envs, env steps/s: {shown}; {1e6 / rates['vec env']:7.3f} microseconds each")
        results[str(num_envs)] = {"unit": "env steps/s", "raw": raw, "median": rates}
    Report("batched_arena", SETTING, results).write(arguments.json)


if __name__ == "__main__":
    main()
