"""Train ten small games with nothing set: what is learned in 40,000 env steps without a preset or any option.

    python benchmarks/no_preset.py [--games NAME,...] [--timesteps 40000] [--seeds 3] [--json FILE]

The games have no preset, so that `marl_sb3.train` shortens SB3's rollouts of 2,048 steps in each of 8 envs to about
2,048 agent steps of each policy. The table compares the mean return of the last 100 episodes, summed over the agents,
with that of untrained policies and with that of SB3's rollouts (`n_steps=2048`).
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from command_line import add_count, add_names, parser
from gymnasium import spaces
from measure import Report, Setting, number, print_table, say
from pettingzoo import ParallelEnv

import marl_sb3
from marl_sb3.types import Array

SETTING = Setting(
    what="marl_sb3.train(game, timesteps, seed) with nothing else set: PPO, 8 envs, one shared policy",
    hyperparameters={},
    threads="1 torch thread",
    changes={},
)
LENGTH = 16  # steps of an episode of the games below
OF_SB3 = {"n_steps": 2048}  # its rollouts


class Bits(ParallelEnv):
    """Agents see bits, and are paid 1 for each right answer.

    Args:
        n_agents: number of agents.
        answer: the bits of all agents in this and the previous step -> the right answer of each agent.
    """

    metadata: ClassVar = {"name": "bits"}

    def __init__(self, n_agents: int, answer: Callable[[Array, Array], Array]) -> None:
        self.possible_agents = [f"a{index}" for index in range(n_agents)]
        self._answer = answer
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an agent's own bit and its own bit of the previous step."""
        return spaces.MultiBinary(2)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an answer."""
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draw the bits of the first two steps."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._steps = list(self.possible_agents), 0
        self._bits = self._draw()
        self._draw_next()
        return self._observations(), {agent: {} for agent in self.agents}

    def _draw(self) -> Array:
        return self._rng.integers(0, 2, len(self.possible_agents))

    def _draw_next(self) -> None:
        self._before, self._bits = self._bits, self._draw()

    def _observations(self) -> dict[str, Any]:
        seen = zip(self.possible_agents, self._bits, self._before, strict=True)
        return {agent: np.array([bit, before], dtype=np.int8) for agent, bit, before in seen}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        """Pay for the right answers, and draw the next bits."""
        right = np.broadcast_to(self._answer(self._bits, self._before), len(self.possible_agents))
        paid = {agent: float(actions[agent] == right[index]) for index, agent in enumerate(self.possible_agents)}
        self._draw_next()
        self._steps += 1
        over = dict.fromkeys(self.agents, self._steps >= LENGTH)
        going_on, infos = dict.fromkeys(self.agents, False), {agent: {} for agent in self.agents}
        self.agents = [] if self._steps >= LENGTH else self.agents
        return self._observations(), paid, going_on, over, infos


class Meet(ParallelEnv):
    """Two agents on a line see each other, and are both paid minus their distance: continuous actions."""

    metadata: ClassVar = {"name": "meet"}
    possible_agents: ClassVar = ["left", "right"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an agent's own place and the other's."""
        return spaces.Box(-2, 2, (2,))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of the agent's step."""
        return spaces.Box(-1, 1, (1,))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draw the places."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._steps = list(self.possible_agents), 0
        self._places = self._rng.uniform(-1, 1, 2)
        return self._observations(), {agent: {} for agent in self.agents}

    def _observations(self) -> dict[str, Any]:
        own = self._places.astype(np.float32)
        return {"left": own, "right": own[::-1].copy()}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        """Move both, and pay both."""
        moves = np.array([float(np.asarray(actions[agent]).reshape(-1)[0]) for agent in self.possible_agents])
        self._places = np.clip(self._places + 0.2 * np.clip(moves, -1, 1), -2, 2)
        self._steps += 1
        paid = dict.fromkeys(self.agents, -float(abs(self._places[0] - self._places[1])))
        over, going_on = dict.fromkeys(self.agents, self._steps >= LENGTH), dict.fromkeys(self.agents, False)
        infos = {agent: {} for agent in self.agents}
        self.agents = [] if self._steps >= LENGTH else self.agents
        return self._observations(), paid, going_on, over, infos


Factory = Callable[[], Any]

GAMES: Mapping[str, Factory] = {
    "CartPole": partial(gymnasium.make, "CartPole-v1"),
    "Acrobot": partial(gymnasium.make, "Acrobot-v1"),
    "Pendulum": partial(gymnasium.make, "Pendulum-v1"),
    "FrozenLake": partial(gymnasium.make, "FrozenLake-v1"),
    "FrozenLake-dry": partial(gymnasium.make, "FrozenLake-v1", is_slippery=False),
    "Taxi": partial(gymnasium.make, "Taxi-v4"),
    "echo": partial(Bits, 2, lambda bits, before: bits),
    "echo-4": partial(Bits, 4, lambda bits, before: bits),
    "changed": partial(Bits, 2, lambda bits, before: bits ^ before),
    "meet": Meet,
}


@dataclass(frozen=True)
class Returns:
    """Mean returns of one game, a value for each seed; `n_steps` is the length of the rollouts that is picked."""

    n_steps: int
    untrained: Sequence[float]
    of_sb3: Sequence[float]
    nothing_set: Sequence[float]


def returns_of(game: str, timesteps: int, seeds: int) -> Returns:
    """Train a game with each seed, with SB3's rollouts and with nothing set."""
    name, runs = f"no-preset-{game}", {}
    marl_sb3.register_env(name, GAMES[game])
    for side, settings in (("of_sb3", OF_SB3), ("nothing_set", {})):
        runs[side] = [_trained(name, timesteps, seed, settings) for seed in range(seeds)]
    finals = {side: [run.result["env_runners"]["episode_return_mean"] for run in each] for side, each in runs.items()}
    n_steps = runs["nothing_set"][0].config.hyperparameters["n_steps"]
    return Returns(n_steps, [_untrained(name, seed) for seed in range(seeds)], **finals)


def _trained(env: str, timesteps: int, seed: int, settings: Mapping[str, Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder, "run")
        return marl_sb3.train(
            env, timesteps=timesteps, seed=seed, settings=settings, run_dir=run_dir, progress_bar=False
        )


def _untrained(env: str, seed: int) -> float:
    with closing(marl_sb3.make_vec_env(env, n_envs=8, seed=seed)) as envs:
        algorithm = marl_sb3.MultiAgentAlgorithm(envs, n_steps=8, batch_size=8, seed=seed)
        return float(marl_sb3.evaluate_policies(algorithm, envs, 100, deterministic=False)["episode_return_mean"])


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--games", GAMES)
    add_count(options, "--timesteps", 40_000, "env steps of a training")
    add_count(options, "--seeds", 3, "trainings of each side")
    arguments = options.parse_args(argv)
    SETTING.print()
    found = {}
    for game in arguments.games:
        found[game] = returns_of(game, arguments.timesteps, arguments.seeds)
        say(f"{game}: {found[game]}")
    header = ["game", "n_steps", "untrained", "n_steps=2048", "nothing set"]
    rows = []
    for game, each in found.items():
        means = [statistics.fmean(part) for part in (each.untrained, each.of_sb3, each.nothing_set)]
        rows.append([game, str(each.n_steps), *map(number, means)])
    print_table(header, rows)
    Report("no_preset", SETTING, {game: asdict(each) for game, each in found.items()}).write(arguments.json)


if __name__ == "__main__":
    main()
