"""A game in which noise of the other agent hides what an action is worth, with and without central critics.

    python benchmarks/team_task.py [--algos sac,td3] [--timesteps 2000] [--seeds 5] [--json FILE]

Two agents see a number each and are to repeat it. They are paid together, `- sum (action - number)^2 + 40 sum number`,
of which neither can change the second part, and each sees only its half. A critic of one agent takes the other half for
noise; a central one sees both. The table has the mean square of what agents do beside their numbers after a training,
over the seeds, with the worst seed; and the seconds of a training. It is 0.33 for agents that do nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
from command_line import add_count, add_names, parser
from gymnasium import spaces
from measure import Report, Setting, print_table, say
from pettingzoo import ParallelEnv
from trainings import one_torch_thread

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env

N_ENVS = 4
BONUS = 40.0
HYPERPARAMETERS: dict[str, Any] = {
    "learning_rate": 3e-3,
    "learning_starts": 400,
    "batch_size": 128,
    "gamma": 0.0,
    "policy_kwargs": {"net_arch": [32, 32]},
}
ALGORITHMS: dict[str, dict[str, Any]] = {"sac": {}, "td3": {"action_noise": {"normal": 0.3}}}
CRITICS: dict[str, dict[str, Any]] = {
    "central": {"central_critic": True, "central_critic_net": [64, 64]},
    "own": {},
}
SETTING = Setting(
    what=f"a shared policy in {N_ENVS} envs", hyperparameters=HYPERPARAMETERS, threads="1 torch thread", changes={}
)


class Repeat(ParallelEnv):  # type: ignore[misc]
    """Each of two agents is to repeat the number that it sees; an episode is one step."""

    metadata = {"name": "repeat"}  # noqa: RUF012
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents, self._rng = ["a", "b"], np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """See `ParallelEnv`."""
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """See `ParallelEnv`."""
        return spaces.Box(-1, 1, (1,), np.float32)

    def _seen(self) -> dict[str, Any]:
        return {agent: self._numbers[index : index + 1] for index, agent in enumerate(self.possible_agents)}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """See `ParallelEnv`."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._numbers = self.possible_agents[:], self._rng.uniform(-1, 1, 2).astype(np.float32)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        """See `ParallelEnv`."""
        done = np.concatenate([actions[agent] for agent in self.agents])
        paid = float(BONUS * self._numbers.sum() - np.square(done - self._numbers).sum())
        agents, self.agents = self.agents, []
        none, over = dict.fromkeys(agents, False), dict.fromkeys(agents, True)
        return self._seen(), dict.fromkeys(agents, paid), over, none, {agent: {} for agent in agents}


def error_of(algorithm: Any) -> float:
    """Return the mean square of what the agents do beside their numbers."""
    numbers = np.linspace(-1, 1, 41, dtype=np.float32)
    errors = []
    for number in numbers:
        done = algorithm.predict({agent: np.array([number]) for agent in "ab"}, deterministic=True)
        errors += [float(np.square(done[agent] - number).mean()) for agent in "ab"]
    return float(np.mean(errors))


def train(algo: str, critics: str, timesteps: int, seed: int) -> float:
    """Train the agents, and return their error."""
    spec = PolicySpec(algo, **HYPERPARAMETERS, **ALGORITHMS[algo], **CRITICS[critics])
    with closing(make_vec_env(Repeat, n_envs=N_ENVS, seed=seed)) as env:
        return error_of(
            MultiAgentAlgorithm(env, {"shared": spec}, n_steps=100, seed=seed, device="cpu").learn(timesteps)
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--algos", ALGORITHMS)
    add_count(options, "--timesteps", 2000, "env steps of a training")
    add_count(options, "--seeds", 5, "trainings of each kind")
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    found, rows = {}, []
    for algo in arguments.algos:
        for critics in CRITICS:
            started_s = time.perf_counter()
            errors = [train(algo, critics, arguments.timesteps, seed) for seed in range(arguments.seeds)]
            seconds = (time.perf_counter() - started_s) / len(errors)
            found[f"{algo}-{critics}"] = {"error": errors, "seconds": seconds}
            rows.append([algo, critics, f"{statistics.fmean(errors):.3f} ({max(errors):.3f})", f"{seconds:.1f}"])
            say(" ".join(rows[-1]))
    print_table(["algorithm", "critics", "error (worst seed)", "seconds"], rows)
    Report("team_task", SETTING, found).write(arguments.json)


if __name__ == "__main__":
    main()
