"""Remember a cue for a few steps: attention over frames, an MLP with and without frames, an LSTM and a GRU.

    python benchmarks/memory_task.py [--delays 3,6,10] [--sides NAME,...] [--timesteps 20000] [--seeds 5] [--json FILE]

An episode shows one of two cues in its first step. The answer to the question DELAY steps later is paid 1 if it names
the cue, which is nowhere to be seen by then. The table has the share of right answers in the last 100 episodes of a
training, and the env steps after which 95% of 100 episodes in a row were right for the first time: means over the
seeds, with the worst seed; and the seconds of a training. Guessing is right in half of the episodes.
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
from measure import Report, Setting, print_table, say, steps_of
from trainings import one_torch_thread

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.types import Array

DELAYS = {"3": 3, "6": 6, "10": 10}
GOAL = 0.95
N_ENVS = 8
HYPERPARAMETERS: dict[str, Any] = {"n_steps": 64, "batch_size": 128, "n_epochs": 4, "learning_rate": 1e-3}
ATTENTION = {"features_extractor_class": "attention"}
# Side -> algorithm, whether it sees frames of the whole episode, and settings.
SIDES: Mapping[str, tuple[str, bool, dict[str, Any]]] = {
    "mlp": ("ppo", False, {}),
    "mlp-frames": ("ppo", True, {}),
    "attention": ("ppo", True, {"policy_kwargs": ATTENTION}),
    "lstm": ("recurrent_ppo", False, {"policy_kwargs": {"lstm_hidden_size": 64}}),
    "gru": ("recurrent_ppo", False, {"policy_kwargs": {"lstm_hidden_size": 64, "cell": "gru"}}),
}
SETTING = Setting(
    what=f"PPO, or RecurrentPPO, in {N_ENVS} envs",
    hyperparameters=HYPERPARAMETERS,
    threads="1 torch thread",
    changes={},
)


class Cue(gymnasium.Env[Array, int]):
    """A cue at the start, and a question about it `delay` steps later.

    An observation is [cue 0, cue 1, question, noise from -1 to 1].
    """

    def __init__(self, delay: int) -> None:
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._delay = delay

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        """Draw a cue."""
        super().reset(seed=seed)
        self._cue, self._steps = int(self.np_random.integers(2)), 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Pay for the answer to the question."""
        is_answer = self._steps == self._delay
        self._steps += 1
        return self._observation(), float(is_answer and action == self._cue), is_answer, False, {}

    def _observation(self) -> Array:
        cues = [self._steps == 0 and self._cue == each for each in range(2)]
        return np.array([*cues, self._steps == self._delay, self.np_random.uniform(-1, 1)], dtype=np.float32)


def train(side: str, delay: int, timesteps: int, seed: int) -> tuple[float, int | None]:
    """Train a policy.

    Returns:
        The share of right answers in the last 100 episodes, and the env steps until that was `GOAL` for the first time.
    """
    algorithm, with_frames, own = SIDES[side]
    frames = {"frame_stack": delay + 1} if with_frames else {}
    spec, reached = PolicySpec(algorithm, **HYPERPARAMETERS, **own, **frames), None
    with closing(make_vec_env(lambda: Cue(delay), n_envs=N_ENVS, seed=seed)) as env:
        training = MultiAgentAlgorithm(env, {"shared": spec}, n_steps=spec.values["n_steps"], seed=seed, device="cpu")
        while training.num_timesteps < timesteps:
            right = training.train_iteration()["env_runners"]["episode_return_mean"]
            if reached is None and right is not None and right >= GOAL:
                reached = training.num_timesteps
    return float(right), reached


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--delays", DELAYS, "STEPS,...")
    add_names(options, "--sides", SIDES)
    add_count(options, "--timesteps", 20_000, "env steps of a training")
    add_count(options, "--seeds", 5, "trainings of each side")
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    found, rows = {}, []
    for delay in arguments.delays:
        for side in arguments.sides:
            started_s = time.perf_counter()
            runs = [train(side, DELAYS[delay], arguments.timesteps, seed) for seed in range(arguments.seeds)]
            shares, reached = zip(*runs, strict=True)
            seconds = (time.perf_counter() - started_s) / len(runs)
            found[f"{side}-{delay}"] = {"right": shares, "env_steps_to_goal": reached, "seconds": seconds}
            right = f"{statistics.fmean(shares):.2f} ({min(shares):.2f})"
            rows.append([delay, side, right, steps_of(reached), f"{seconds:.1f}"])
            say(" ".join(rows[-1]))
    print_table(["delay", "side", "right (worst seed)", f"env steps to {GOAL:.0%} (worst seed)", "seconds"], rows)
    Report("memory_task", SETTING, found).write(arguments.json)


if __name__ == "__main__":
    main()
