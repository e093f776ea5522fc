"""Which move, and how far? PPO with hybrid actions, with lengths in steps, and with numbers alone.

    python benchmarks/platform_task.py [--sides NAME,...] [--timesteps 40000] [--seeds 5] [--json FILE]

One decision at a time as in Platform (Masson et al. 2016): a runner stands before an enemy and a gap. It runs, hops or
leaps, each by a length of its own. Which move is right depends on how high the enemy and how wide the gap is, and the
right length on these and on the distance. The wrong move is paid nothing, the right one 1 less four times the error of
its length, of which the whole range is 2, and at least 0.

hybrid: a Dict of the move and a length for each move. steps-3, steps-9, steps-27: a Discrete of each move with so many
lengths, of which the best ones are paid 0.38, 0.78 and 0.93. numbers: a Box of six numbers; the largest of the first
three is the move. The table has the mean pay of 1,000 episodes with the most likely actions after a training: means
over the seeds, with the worst seed; and the seconds of a training.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from command_line import add_count, add_names, parser
from gymnasium import spaces
from measure import Report, Setting, print_table, say
from trainings import one_torch_thread

from marl_sb3 import MultiAgentAlgorithm, evaluate_policies, make_vec_env
from marl_sb3.types import Array

N_ENVS = 16
HYPERPARAMETERS: dict[str, Any] = {
    "n_steps": 32,
    "batch_size": 64,
    "learning_rate": "lin_3e-3",
    "gamma": 0.0,
    "policy_kwargs": {"log_std_init": -1.0},  # of numbers alone
}
SETTING = Setting(what=f"PPO in {N_ENVS} envs", hyperparameters=HYPERPARAMETERS, threads="1 torch thread", changes={})
MOVES = ("run", "hop", "leap")


class Platform(gymnasium.Env[Array, Any]):
    """See the top of the file. It observes the distance, the height of the enemy and the width of the gap."""

    action_space: spaces.Space[Any] = spaces.Dict(
        {"move": spaces.Discrete(len(MOVES)), **{name: spaces.Box(-1, 1, (1,), np.float32) for name in MOVES}}
    )
    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Draw an enemy and a gap."""
        super().reset(seed=seed)
        self._seen = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self._seen, {}

    def right(self) -> tuple[str, float]:
        """Return the right move, and its length from -1 to 1."""
        distance, height, width = self._seen
        if max(height, width) < -0.2:
            return "run", float(distance)
        return ("hop", float(distance + height) / 2) if height > width else ("leap", float(width - distance) / 2)

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Pay for a move."""
        move, length = self.right()
        paid = max(0.0, 1 - 4 * abs(float(action[move][0]) - length)) if MOVES[int(action["move"])] == move else 0.0
        return self._seen, paid, True, False, {}


class InSteps(gymnasium.ActionWrapper[Array, int, Any]):
    """A Discrete: each move with so many lengths, at equal distances."""

    def __init__(self, env: Platform, lengths: int) -> None:
        super().__init__(env)
        self.action_space = spaces.Discrete(len(MOVES) * lengths)
        self._lengths = np.linspace(-1, 1, 2 * lengths + 1)[1::2]  # the middles of equal parts

    def action(self, action: int) -> dict[str, Any]:
        """Return the move and its length."""
        move, length = divmod(int(action), len(self._lengths))
        return {"move": move, **{name: [self._lengths[length]] for name in MOVES}}


class Numbers(gymnasium.ActionWrapper[Array, Array, Any]):
    """A Box: three numbers of which the largest is the move, and the lengths."""

    def __init__(self, env: Platform) -> None:
        super().__init__(env)
        self.action_space = spaces.Box(-1, 1, (2 * len(MOVES),), np.float32)

    def action(self, action: Array) -> dict[str, Any]:
        """Return the move and its length."""
        lengths = action[len(MOVES) :]
        return {
            "move": int(np.argmax(action[: len(MOVES)])),
            **{name: lengths[n : n + 1] for n, name in enumerate(MOVES)},
        }


SIDES: Mapping[str, Callable[[], gymnasium.Env[Any, Any]]] = {
    "hybrid": Platform,
    "steps-3": lambda: InSteps(Platform(), 3),
    "steps-9": lambda: InSteps(Platform(), 9),
    "steps-27": lambda: InSteps(Platform(), 27),
    "numbers": lambda: Numbers(Platform()),
}


def train(side: str, timesteps: int, seed: int, episodes: int = 1000) -> float:
    """Train a policy, and return the mean pay of its most likely actions."""
    with closing(make_vec_env(SIDES[side], n_envs=N_ENVS, seed=seed)) as env:
        training = MultiAgentAlgorithm(env, seed=seed, device="cpu", **HYPERPARAMETERS)
        training.learn(timesteps)
    with closing(make_vec_env(SIDES[side], n_envs=N_ENVS)) as env:
        found = evaluate_policies(training, env, episodes, deterministic=True, seed=1000 + seed)
    return float(found["episode_return_mean"])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--sides", SIDES)
    add_count(options, "--timesteps", 40_000, "env steps of a training")
    add_count(options, "--seeds", 5, "trainings of each side")
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    found, rows = {}, []
    for side in arguments.sides:
        started_s = time.perf_counter()
        paid = [train(side, arguments.timesteps, seed) for seed in range(arguments.seeds)]
        seconds = (time.perf_counter() - started_s) / len(paid)
        found[side] = {"paid": paid, "seconds": seconds}
        rows.append([side, f"{statistics.fmean(paid):.2f} ({min(paid):.2f})", f"{seconds:.1f}"])
        say(" ".join(rows[-1]))
    print_table(["actions", "paid (worst seed)", "seconds"], rows)
    Report("platform_task", SETTING, found).write(arguments.json)


if __name__ == "__main__":
    main()
