"""A player of your own for `evaluate --against examples.opponents:Centre`, in a tournament with those of the package.

`python examples/opponents.py --games 50` lets the players of tic-tac-toe and connect four play against each other.
"""

import argparse
from itertools import pairwise
from typing import Any

import numpy as np
import pettingzoo

from marl_sb3.evaluation.opponents import OPPONENTS


class Random:
    """Draws any allowed move, as `--against random` does."""

    def act(self, observation: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> int:
        """Choose a move."""
        return int(rng.choice(np.flatnonzero(mask)))


class Centre:
    """Prefers moves near the middle: in connect four, more lines lead through them."""

    def act(self, observation: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> int:
        """Choose a move; `observation` is what the env shows the player whose turn it is, `mask` which moves it has."""
        near = -np.abs(np.arange(len(mask)) - len(mask) // 2)
        return int(np.argmax(np.where(mask, near + rng.random(len(mask)), -np.inf)))


# --- A tournament ----------------------------------------------------------------------------------------------------

LADDERS: dict[str, list[type]] = {
    "classic/tictactoe-v3": [Random, *map(OPPONENTS.__getitem__, ("greedy", "minimax2", "perfect"))],
    "classic/connect_four-v3": [Random, Centre, *map(OPPONENTS.__getitem__, ("minimax2", "minimax4", "lines2"))],
}


def play(env: Any, players: list[Any], rng: np.random.Generator) -> float:
    """Play a game; returns what the first player is paid."""
    env.reset()
    for agent in env.agent_iter():
        observation, _, terminated, _, _ = env.last()
        if terminated:
            return float(env.rewards[env.possible_agents[0]])
        player = players[env.possible_agents.index(agent)]
        env.step(player.act(observation["observation"], observation["action_mask"], rng))
    raise AssertionError("a game has an end")


def main(games: int, seed: int) -> None:
    """Let each player play against the next weaker one, in half of the games as the first."""
    rng = np.random.default_rng(seed)
    for game, ladder in LADDERS.items():
        for weak, strong in pairwise(ladder):
            env, results = pettingzoo.make("aec", game), []
            for number in range(games):
                sign = 1 if number % 2 == 0 else -1
                results.append(sign * play(env, [strong(), weak()][::sign], rng))
            won, lost = (sum(result == sign for result in results) / games for sign in (1, -1))
            print(f"{game}: {strong.__name__} wins {won:.0%} against {weak.__name__}, and loses {lost:.0%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=50, help="of each pair; default: 50")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    arguments = parser.parse_args()
    main(arguments.games, arguments.seed)
