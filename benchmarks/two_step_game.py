"""The two-step game of the QMIX paper (Rashid et al. 2018, section 5): what VDN and QMIX find.

    python benchmarks/two_step_game.py [--algos vdn,qmix] [--timesteps 16000] [--seeds 5] [--json FILE]

In the first step, agent a chooses one of two matrix games, which both agents then play. In the first game they are paid
7 whatever they do; in the second one 8 if both take their second action, 1 if one of them does, and 0 else. No sum of
values of single actions tells the second game as it is: the best sums make it worth 6.5. All actions of the training
are random, so that the value functions alone decide. The table has what the teams are paid that the trained policies
make, of each seed, and the seconds of a training.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from command_line import add_count, add_names, parser
from gymnasium import spaces
from measure import Report, Setting, print_table, say
from pettingzoo import ParallelEnv
from trainings import one_torch_thread

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, evaluate_policies, make_vec_env

N_ENVS = 8
HYPERPARAMETERS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "buffer_size": 10_000,
    "learning_starts": 200,
    "batch_size": 32,
    "train_freq": 1,
    "target_update_interval": 400,
    "exploration_initial_eps": 1.0,
    "exploration_final_eps": 1.0,
    "team_reward": "shared",
    "policy_kwargs": {"net_arch": [64]},
}
ALGOS = ("vdn", "qmix")
SETTING = Setting(
    what=f"VDN and QMIX in {N_ENVS} envs",
    hyperparameters=HYPERPARAMETERS,
    threads="1 torch thread",
    changes={},
)


class TwoStepGame(ParallelEnv):  # type: ignore[misc]
    """See above; an agent sees which of three states it is in, and which agent it is."""

    metadata = {"name": "two_step_game"}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012
    render_mode = None

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """See `ParallelEnv`."""
        return spaces.Box(0, 1, (5,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """See `ParallelEnv`."""
        return spaces.Discrete(2)

    def state(self) -> Any:
        """Return which of the states it is, one-hot."""
        return np.eye(3, dtype=np.float32)[self._state]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin in the first state."""
        self.agents, self._state = self.possible_agents[:], 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Choose a game, or play it."""
        is_over, paid = self._state > 0, 0.0
        if self._state == 0:
            self._state = 1 + int(actions["a"])
        elif self._state == 1:
            paid = 7.0
        else:
            paid = (0.0, 1.0, 8.0)[int(actions["a"]) + int(actions["b"])]
        agents = self.agents
        self.agents = [] if is_over else agents
        of_all = (dict.fromkeys(agents, each) for each in (paid, is_over, False))
        return self._seen(), *of_all, {agent: {} for agent in agents}

    def _seen(self) -> dict[str, Any]:
        return {agent: np.concatenate([self.state(), who]) for agent, who in zip("ab", np.eye(2), strict=True)}


def train(algo: str, timesteps: int, seed: int, **settings: Any) -> float:
    """Train a policy; returns what the team is paid that it makes."""
    with closing(make_vec_env(TwoStepGame, n_envs=N_ENVS, seed=seed)) as env:
        spec = PolicySpec(algo, **{**HYPERPARAMETERS, **settings})
        algorithm = MultiAgentAlgorithm(env, {"team": spec}, seed=seed, device="cpu").learn(timesteps)
        result = evaluate_policies(algorithm, env, n_episodes=1, seed=0)
    return float(result["episode_return_mean"]) / 2


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--algos", ALGOS)
    add_count(options, "--timesteps", 16_000, "env steps of a training")
    add_count(options, "--seeds", 5, "trainings of each algorithm")
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    found, rows = {}, []
    for algo in arguments.algos:
        started_s = time.perf_counter()
        paid = [train(algo, arguments.timesteps, seed) for seed in range(arguments.seeds)]
        seconds = (time.perf_counter() - started_s) / len(paid)
        found[algo] = {"paid": paid, "seconds": seconds}
        rows.append([algo, " ".join(f"{each:g}" for each in paid), f"{seconds:.1f}"])
        say(" ".join(rows[-1]))
    print_table(["algorithm", "paid (each seed)", "seconds"], rows)
    Report("two_step_game", SETTING, found).write(arguments.json)


if __name__ == "__main__":
    main()
