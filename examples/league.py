"""A league: a policy learns Nim against itself, and against a pool of its earlier selves.

Two players take one, two or three of 21 sticks in turn; whoever takes the last one wins. Perfect play leaves a multiple
of four.
"""

import argparse
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3 import League, MaskablePPO, MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, make_vec_env

STICKS, MOST = 21, 3
PLAYERS = ("first", "second")


class Nim(ParallelEnv):
    """Two players move in turn; the agent that waits for its turn is not in `agents`."""

    possible_agents = PLAYERS

    def __init__(self) -> None:
        # The share of moves that are perfect, of those where a perfect one exists.
        perfect = {"key": "perfect", "reduce": "mean"}
        self.metadata = {"name": "nim_v0", "custom_metrics": {"perfect": perfect}}
        self.observation_spaces = dict.fromkeys(PLAYERS, spaces.Discrete(STICKS + 1))
        self.action_spaces = dict.fromkeys(PLAYERS, spaces.Discrete(MOST))

    def observation_space(self, agent: str) -> spaces.Space:
        """Both see the number of sticks."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        """Action 0 takes one stick."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, int], dict[str, Any]]:
        """Begin with all sticks."""
        self.sticks, self.agents = STICKS, [PLAYERS[0]]
        return self._seen()

    def _seen(self) -> tuple[dict[str, int], dict[str, Any]]:
        mask = np.arange(1, MOST + 1) <= self.sticks
        return dict.fromkeys(self.agents, self.sticks), {agent: {"action_mask": mask} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        """One player takes sticks; the winner is paid 1, the loser -1."""
        (player,), (action,) = actions.keys(), actions.values()
        (other,) = (each for each in PLAYERS if each != player)
        exists = self.sticks % (MOST + 1) != 0
        self.sticks -= int(action) + 1
        is_over = self.sticks == 0
        self.agents = list(PLAYERS) if is_over else [other]
        observations, infos = self._seen()
        if exists:
            infos[player] = {**infos.get(player, {}), "perfect": float(self.sticks % (MOST + 1) == 0)}
        rewards = {player: float(is_over), other: -float(is_over)}
        terminated, truncated = dict.fromkeys(PLAYERS, is_over), dict.fromkeys(PLAYERS, False)
        if is_over:
            self.agents = []
        return observations, rewards, terminated, truncated, infos


class Report(MultiAgentCallback):
    """Prints how the policy does against the pool."""

    def on_iteration_end(self, result: dict) -> bool:
        """Called after each iteration."""
        league, perfect = result["league"], result["env_runners"]["custom_metrics"]["perfect_mean"]
        points = league["points_mean"]["main"]
        if points is not None:
            pool = f"{points:.0%} of the points against a pool of {league['pool_size']}"
            print(f"{self.num_timesteps} env steps: {pool}, {perfect:.0%} of all moves perfect")
        return True


def main(env_steps: int, every: int) -> None:
    """Train, and print how the policy plays."""
    env = make_vec_env(Nim, n_envs=16, seed=0)
    spec = PolicySpec(MaskablePPO, n_steps=128, batch_size=256, ent_coef=0.02, learning_rate=1e-3)
    league = League({"main": PLAYERS}, snapshot_every=every, pool_size=10, self_play=0.3)
    algo = MultiAgentAlgorithm(env, {"main": spec}, league, seed=0)
    algo.learn(env_steps, callback=Report())
    for name, rating in league.ratings().items():
        print(f"{name}: rating {rating:.0f}")
    moves = {}
    for sticks in (21, 18, 11, 7):
        masks = {"first": np.ones(MOST, dtype=bool)}  # enough sticks lie there for any move
        moves[sticks] = algo.predict({"first": sticks}, deterministic=True, action_masks=masks)["first"] + 1
    print("takes", ", ".join(f"{taken} of {sticks}" for sticks, taken in moves.items()))
    env.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-steps", type=int, default=200_000, help="default: 200000")
    parser.add_argument("--every", type=int, default=8, help="iterations between two snapshots; default: 8")
    arguments = parser.parse_args()
    main(arguments.env_steps, arguments.every)
