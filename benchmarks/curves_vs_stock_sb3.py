"""Test whether algorithms learn as in stock SB3: returns after training, over seeds, with Welch's t-test.

    python benchmarks/curves_vs_stock_sb3.py [--seeds 5] [--timesteps 100000] [--algos ppo,sac,td3]
        [--envs Hopper-v5,HalfCheetah-v5] [--json FILE]
    python benchmarks/curves_vs_stock_sb3.py --algos ppo_images --envs MinAtar/Breakout-v1

Both sides train one env with the same hyperparameters and seeds on one core; it needs
`pip install 'gymnasium[mujoco]' minatar`. Images are MinAtar's alone, whose 10 x 10 cells are drawn 4 times as large:
SB3's CnnPolicy takes at least 36 x 36 pixels. "During" is the mean return of all episodes of a training, "after" that
of 20 episodes which the last policy plays without noise. The draws of both sides differ, so that only the
distributions can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from command_line import add_count, add_names, parser
from measure import Report, Setting, print_table, take_turns
from scipy import stats
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from trainings import one_torch_thread

import marl_sb3
from marl_sb3.core.config.algorithms import algorithm_info

# SB3's defaults, but for algorithms with a replay buffer: a training of stock SB3 would take 17 minutes.
SMALLER: Mapping[str, Any] = {"policy_kwargs": {"net_arch": [64, 64]}, "train_freq": 2}
# As rl-baselines3-zoo trains PPO in Atari games, but with one env and a constant learning rate.
IMAGES: Mapping[str, Any] = {
    "policy": "CnnPolicy",
    "n_steps": 1024,
    "batch_size": 256,
    "n_epochs": 4,
    "learning_rate": 2.5e-4,
    "clip_range": 0.1,
    "ent_coef": 0.01,
}
ALGOS: Mapping[str, Mapping[str, Any]] = {"ppo": {}, "sac": SMALLER, "td3": SMALLER, "ppo_images": IMAGES}
ENVS = ("Hopper-v5", "HalfCheetah-v5", "MinAtar/Breakout-v1")
EPISODES = 20
STOCK, OURS = "stock", "marl_sb3"
SETTING = Setting(
    what="one env; PPO: SB3's default hyperparameters; SAC, TD3 and images: these and the defaults",
    hyperparameters={**SMALLER, "images": IMAGES},
    threads="1 torch thread, 1 thread of the kernels",
    changes={},
    packages=("marl_sb3", "stable-baselines3", "sb3-contrib", "torch", "numpy", "gymnasium"),
)


class Trained(NamedTuple):
    """What a training reached, and what it cost."""

    during: float
    after: float
    cpu_s: float


def our_class(algo: str) -> type[Any]:
    """Return marl_sb3's class of an algorithm."""
    return algorithm_info(algo.removesuffix("_images")).algorithm_class


def made(env_id: str) -> Monitor[Any, Any]:
    """Make an env; one of MinAtar shows images of 40 x 40 pixels, of which a channel is black or white."""
    if not env_id.startswith("MinAtar/"):
        return Monitor(gymnasium.make(env_id))
    if env_id not in gymnasium.registry:
        import_module("minatar.gym").register_envs()
    env = gymnasium.make(env_id)
    height, width, channels = env.observation_space.shape or ()
    space = gymnasium.spaces.Box(0, 255, (4 * height, 4 * width, channels), np.uint8)
    scale = np.full((4, 4, 1), 255, np.uint8)
    return Monitor(gymnasium.wrappers.TransformObservation(env, lambda seen: np.kron(seen, scale), space))


def stock_side(algo: str, env_id: str, timesteps: int, seed: int) -> Trained:
    """Train with stock SB3."""
    stock: Any = next(base for base in our_class(algo).__mro__ if not base.__module__.startswith("marl_sb3"))
    env = made(env_id)
    model = stock(env=env, seed=seed, device="cpu", **{"policy": "MlpPolicy", **deepcopy(ALGOS[algo])})
    begun = time.process_time()
    model.learn(timesteps)
    cpu_s = time.process_time() - begun
    return Trained(float(np.mean(env.get_episode_rewards())), evaluated(model, env_id), cpu_s)


def our_side(algo: str, env_id: str, timesteps: int, seed: int) -> Trained:
    """Train with `MultiAgentAlgorithm` and one agent."""
    watched = made(env_id)
    env = marl_sb3.make_vec_env(lambda: watched, n_envs=1)
    spec = marl_sb3.PolicySpec(our_class(algo), **ALGOS[algo])
    algorithm = marl_sb3.MultiAgentAlgorithm(env, {"policy": spec}, seed=seed, device="cpu", n_parallel_updates=1)
    begun = time.process_time()
    algorithm.learn(timesteps)
    cpu_s = time.process_time() - begun
    after = evaluated(algorithm.parts.learners["policy"].algorithm, env_id)
    return Trained(float(np.mean(watched.get_episode_rewards())), after, cpu_s)


def evaluated(model: Any, env_id: str) -> float:
    """Return the mean return of the last policy."""
    env = made(env_id)
    env.reset(seed=12345)
    mean, _ = evaluate_policy(model, env, EPISODES, deterministic=True, warn=False)
    return float(mean)  # type: ignore[arg-type]


def row(name: str, found: dict[str, list[Trained]]) -> list[str]:
    """Return the table row of an algorithm in an env."""
    cells = []
    for what in ("during", "after"):
        sides = [np.array([getattr(each, what) for each in found[side]]) for side in (STOCK, OURS)]
        digits = 0 if np.abs(sides).max() >= 100 else 2
        cells += [f"{side.mean():.{digits}f} ({side.std(ddof=1):.{digits}f})" for side in sides]
        cells.append(f"{stats.ttest_ind(*sides, equal_var=False).pvalue:.2f}")
    cells += [f"{np.mean([each.cpu_s for each in found[side]]):.0f}" for side in (STOCK, OURS)]
    return [name, *cells]


def main(argv: Sequence[str] | None = None) -> None:
    """Train and print a table with a row for each algorithm and env."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--algos", ALGOS)
    add_names(options, "--envs", ENVS)
    add_count(options, "--seeds", 5, "trainings of each side")
    add_count(options, "--timesteps", 100_000, "env steps of a training")
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    rows, results = [], {}
    for algo, env_id in product(arguments.algos, arguments.envs):
        if (algo == "ppo_images") != env_id.startswith("MinAtar/"):
            continue
        sides: dict[str, Callable[[int], Trained]] = {
            STOCK: partial(stock_side, algo, env_id, arguments.timesteps),
            OURS: partial(our_side, algo, env_id, arguments.timesteps),
        }
        found = take_turns(sides, arguments.seeds, f"{algo} {env_id}")
        rows.append(row(f"{algo}, {env_id}", found))
        results[f"{algo}-{env_id}"] = {side: [each._asdict() for each in of_side] for side, of_side in found.items()}
    heads = [f"{what}: {each}" for what in ("during", "after") for each in (STOCK, OURS, "p")]
    print_table(["mean return (SD)", *heads, f"CPU s: {STOCK}", f"CPU s: {OURS}"], rows)
    Report("curves_vs_stock_sb3", SETTING, results).write(arguments.json)


if __name__ == "__main__":
    main()
