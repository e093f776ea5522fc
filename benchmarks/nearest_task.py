"""On which side is the nearest one? An MLP, and networks for sets: deep sets and attention over entities.

    python benchmarks/nearest_task.py [--entities 5,20] [--sides NAME,...] [--timesteps 10000] [--seeds 5] [--json FILE]

An episode has one step, which shows the places of 1 to ENTITIES entities in any rows of a matrix, and zeros in the
other rows. The action is paid 1 if it names the side of the nearest one. The table has the share of right actions in
the last 1,000 episodes of a training, while actions are sampled: means over the seeds, with the worst seed; and the
seconds of a training. Guessing is right in half of the episodes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from command_line import add_count, add_names, parser
from gymnasium import spaces
from measure import Report, Setting, print_table, say
from trainings import one_torch_thread

from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.types import Array

ENTITIES = {"5": 5, "20": 20}
N_ENVS = 16
HYPERPARAMETERS: dict[str, Any] = {"n_steps": 32, "batch_size": 128, "learning_rate": 2e-3, "gamma": 0.0}
# Side -> arguments of its features extractor; None: there is none.
SIDES: Mapping[str, dict[str, Any] | None] = {
    "mlp": None,
    "deep_sets": {"net_arch": [32, 32], "pooling": "max"},
    "set_attention": {"embed_dim": 32, "pooling": "max"},
}
SETTING = Setting(what=f"PPO in {N_ENVS} envs", hyperparameters=HYPERPARAMETERS, threads="1 torch thread", changes={})


class SideOfTheNearest(gymnasium.Env[Array, int]):
    """Is the nearest of 1 to `most` entities to the left or to the right? An observation is (most, 2) places."""

    def __init__(self, most: int) -> None:
        self.observation_space = spaces.Box(-1, 1, (most, 2), np.float32)
        self.action_space = spaces.Discrete(2)
        self._most = most

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Draw the entities and their rows."""
        super().reset(seed=seed)
        number = int(self.np_random.integers(1, self._most + 1))
        places = self.np_random.uniform(-1, 1, (number, 2)).astype(np.float32)
        self._is_right = bool(places[np.linalg.norm(places, axis=1).argmin(), 0] > 0)
        seen = np.zeros((self._most, 2), np.float32)
        seen[self.np_random.choice(self._most, number, replace=False)] = places
        return seen, {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Pay for the side."""
        return np.zeros((self._most, 2), np.float32), float(action == self._is_right), True, False, {}


def train(side: str, most: int, timesteps: int, seed: int) -> float:
    """Train a policy, and return the share of right actions in the last 1,000 episodes."""
    arguments, network = SIDES[side], {}
    if arguments is not None:
        network = {"features_extractor_class": side, "features_extractor_kwargs": arguments}
    with closing(make_vec_env(lambda: SideOfTheNearest(most), n_envs=N_ENVS, seed=seed)) as env:
        training = MultiAgentAlgorithm(
            env, seed=seed, device="cpu", stats_window_size=1000, policy_kwargs=network, **HYPERPARAMETERS
        )
        while training.num_timesteps < timesteps:
            right = training.train_iteration()["env_runners"]["episode_return_mean"]
    return float(right)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--entities", ENTITIES, "NUMBER,...")
    add_names(options, "--sides", SIDES)
    add_count(options, "--timesteps", 10_000, "env steps of a training")
    add_count(options, "--seeds", 5, "trainings of each side")
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    found, rows = {}, []
    for entities in arguments.entities:
        for side in arguments.sides:
            started_s = time.perf_counter()
            right = [train(side, ENTITIES[entities], arguments.timesteps, seed) for seed in range(arguments.seeds)]
            seconds = (time.perf_counter() - started_s) / len(right)
            found[f"{side}-{entities}"] = {"right": right, "seconds": seconds}
            rows.append([entities, side, f"{statistics.fmean(right):.2f} ({min(right):.2f})", f"{seconds:.1f}"])
            say(" ".join(rows[-1]))
    print_table(["entities", "side", "right (worst seed)", "seconds"], rows)
    Report("nearest_task", SETTING, found).write(arguments.json)


if __name__ == "__main__":
    main()
