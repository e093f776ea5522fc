"""Remember a cue with a replay buffer: recurrent DQN and SAC, and DQN and SAC with fewer frames than the delay.

    python benchmarks/recall_task.py [--delays 4,8] [--sides NAME,...] [--timesteps 10000] [--seeds 5] [--json FILE]

Each of two agents sees a cue of its own in the first step of an episode. DELAY steps later it is asked for the cue,
which is nowhere to be seen by then: with discrete actions, the right answer is paid 1, in a Box, an answer at the
distance d is paid 1 - d. Both agents play one policy. The table has the mean payment of an agent in the last 100
episodes of a training, of which the cues are 0 and 1 in the one case, -0.5 and 0.5 in the other: who does not know the
cue is paid 0.5 at most. And the env steps after which that mean was 0.95, in a Box 0.85, for the first time: means over
the seeds, with the worst seed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, ClassVar

import numpy as np
from command_line import add_count, add_names, parser
from gymnasium import spaces
from measure import Report, Setting, print_table, say, steps_of
from pettingzoo import ParallelEnv
from trainings import one_torch_thread

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.types import Array

DELAYS = {"4": 4, "8": 8}
FRAMES = 3
N_ENVS = 4
COMMON: dict[str, Any] = {"learning_rate": 1e-3, "buffer_size": 20_000, "learning_starts": 500, "train_freq": 2}
Q: dict[str, Any] = {
    **COMMON,
    "target_update_interval": 400,
    "exploration_schedule": [[0, 1.0], [4000, 0.02]],  # by env steps
}
CONTINUOUS: dict[str, Any] = {
    **COMMON,
    "learning_rate": 3e-3,
    "tau": 0.02,
    "ent_coef": "auto_0.1",
    "target_entropy": -2.0,
}
SEQUENCES: dict[str, Any] = {"burn_in": 4, "sequence_length": 10, "batch_size": 32}
LSTM: dict[str, Any] = {"net_arch": [32], "lstm_hidden_size": 32}
# Side -> algorithm, the mean payment that is aimed at, and settings.
SIDES: Mapping[str, tuple[str, float, dict[str, Any]]] = {
    "dqn-frames": ("dqn", 0.95, {**Q, "frame_stack": FRAMES, "batch_size": 128}),
    "dqn-lstm": ("recurrent_dqn", 0.95, {**Q, **SEQUENCES, "policy_kwargs": LSTM}),
    "dqn-gru": ("recurrent_dqn", 0.95, {**Q, **SEQUENCES, "policy_kwargs": {**LSTM, "cell": "gru"}}),
    "sac-frames": ("sac", 0.85, {**CONTINUOUS, "frame_stack": FRAMES, "batch_size": 128}),
    "sac-lstm": ("recurrent_sac", 0.85, {**CONTINUOUS, **SEQUENCES, "policy_kwargs": LSTM}),
    "sac-gru": ("recurrent_sac", 0.85, {**CONTINUOUS, **SEQUENCES, "policy_kwargs": {**LSTM, "cell": "gru"}}),
}
SETTING = Setting(
    what=f"DQN and SAC with {FRAMES} stacked frames, and with memory, in {N_ENVS} envs of two agents",
    hyperparameters={**Q, **CONTINUOUS, **SEQUENCES},
    threads="1 torch thread",
    changes={},
)


class Recall(ParallelEnv[str, Array, Any]):
    """Two agents are shown a cue each, and asked for it `delay` steps later.

    An observation is [cue -1 or 1, or 0 after the first step, question, noise from -1 to 1].

    Args:
        delay: steps from the cue to the question.
        is_box: whether answers are numbers from -1 to 1 instead of 0 or 1.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "recall"}

    def __init__(self, delay: int, is_box: bool = False) -> None:
        self.possible_agents = ["a", "b"]
        self._delay, self._is_box = delay, is_box

    def observation_space(self, agent: str) -> spaces.Box:
        """Three numbers."""
        return spaces.Box(-1, 1, (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        """Two answers, or a number."""
        return spaces.Box(-1, 1, (1,), np.float32) if self._is_box else spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Array], dict[str, Any]]:
        """Draw cues."""
        if seed is not None or not hasattr(self, "_rng"):
            self._rng = np.random.default_rng(seed)
        self.agents, self._steps = self.possible_agents[:], 0
        self._cues = {agent: int(self._rng.integers(2)) for agent in self.agents}
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Pay for the answers to the question."""
        is_answer = self._steps == self._delay
        self._steps += 1
        paid = {agent: self._paid(agent, action) if is_answer else 0.0 for agent, action in actions.items()}
        seen = self._observations()
        agents, self.agents = self.agents, [] if is_answer else self.agents
        return seen, paid, dict.fromkeys(agents, is_answer), dict.fromkeys(agents, False), {a: {} for a in agents}

    def _paid(self, agent: str, action: Any) -> float:
        if self._is_box:
            return 1.0 - abs(float(np.asarray(action).item()) - (self._cues[agent] - 0.5))
        return float(int(action) == self._cues[agent])

    def _observations(self) -> dict[str, Array]:
        shown = {agent: (2 * self._cues[agent] - 1) * (self._steps == 0) for agent in self.agents}
        is_asked = self._steps == self._delay
        return {
            agent: np.array([cue, is_asked, self._rng.uniform(-1, 1)], dtype=np.float32) for agent, cue in shown.items()
        }


def train(side: str, delay: int, timesteps: int, seed: int, **more: Any) -> tuple[float, int | None]:
    """Train a policy.

    Returns:
        The mean payment of an agent in the last 100 episodes, and the env steps until that was the goal for the first
        time.
    """
    algorithm, goal, settings = SIDES[side]
    spec, reached, paid = PolicySpec(algorithm, **{**settings, **more}), None, 0.0
    with closing(make_vec_env(lambda: Recall(delay, algorithm.endswith("sac")), n_envs=N_ENVS, seed=seed)) as env:
        training = MultiAgentAlgorithm(env, {"shared": spec}, n_steps=250, seed=seed, device="cpu")
        while training.num_timesteps < timesteps:
            paid = training.train_iteration()["env_runners"]["episode_return_mean"] / 2
            if reached is None and paid >= goal:
                reached = training.num_timesteps
    return paid, reached


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--delays", DELAYS, "STEPS,...")
    add_names(options, "--sides", SIDES)
    add_count(options, "--timesteps", 10_000, "env steps of a training")
    add_count(options, "--seeds", 5, "trainings of each side")
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    found, rows = {}, []
    for delay in arguments.delays:
        for side in arguments.sides:
            started_s = time.perf_counter()
            runs = [train(side, DELAYS[delay], arguments.timesteps, seed) for seed in range(arguments.seeds)]
            paid, reached = zip(*runs, strict=True)
            seconds = (time.perf_counter() - started_s) / len(runs)
            found[f"{side}-{delay}"] = {"paid": paid, "env_steps_to_goal": reached, "seconds": seconds}
            means = f"{statistics.fmean(paid):.2f} ({min(paid):.2f})"
            rows.append([delay, side, means, steps_of(reached), f"{seconds:.1f}"])
            say(" ".join(rows[-1]))
    print_table(["delay", "side", "paid (worst seed)", "env steps to the goal (worst seed)", "seconds"], rows)
    Report("recall_task", SETTING, found).write(arguments.json)


if __name__ == "__main__":
    main()
