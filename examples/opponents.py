"""Players of tic-tac-toe and connect four, from weak to strong, for `evaluate --against examples.opponents:Minimax2`.

Alone, it lets them play against each other: `python examples/opponents.py --games 50`.
"""

import argparse
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pettingzoo

IN_LINE = {(3, 3): 3, (6, 7): 4}  # cells in a line that win, by rows and columns of the board

Shape = tuple[int, int]


@cache
def lines_through(shape: Shape) -> list[list[int]]:
    """For each cell, row * columns + column, the lines that win there, each as an integer with a bit for each cell."""
    rows, columns = shape
    found: list[list[int]] = [[] for _ in range(rows * columns)]
    for row, column in np.ndindex(shape):
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            line = [(row + i * down, column + i * right) for i in range(IN_LINE[shape])]
            if all(y < rows and 0 <= x < columns for y, x in line):
                cells = [y * columns + x for y, x in line]
                for cell in cells:
                    found[cell].append(sum(1 << each for each in cells))
    return found


def cells_of_moves(shape: Shape, taken: int) -> dict[int, int]:
    """Action -> the cell that it fills, of the moves that are possible."""
    rows, columns = shape
    if shape == (3, 3):
        free = {cell: cell for cell in range(rows * columns)}
    else:  # a piece falls to the lowest free cell of its column
        heights = [sum(taken >> (y * columns + x) & 1 for y in range(rows)) for x in range(columns)]
        free = {x: (rows - 1 - height) * columns + x for x, height in enumerate(heights) if height < rows}
    return {action: cell for action, cell in free.items() if not taken >> cell & 1}


@lru_cache(2**18)
def values_of_moves(shape: Shape, own: int, other: int, depth: int) -> dict[int, float]:
    """Action -> its value by minimax: 1 for a win, -1 for a loss, less for later ones, 0 for what is not seen."""
    values = {}
    for action, cell in cells_of_moves(shape, own | other).items():
        mine = own | 1 << cell
        if any(mine & line == line for line in lines_through(shape)[cell]):
            values[action] = 1.0
        else:
            replies = values_of_moves(shape, other, mine, depth - 1) if depth > 1 else {}
            values[action] = -0.9 * max(replies.values(), default=0.0)
    return values


class Greedy:
    """Looks one move ahead: it wins where it can, and else draws any move."""

    depth = 1

    def act(self, observation: np.ndarray, mask: Any, rng: np.random.Generator) -> int:
        """Choose a best move, by what the env shows: (rows, columns, 2), own pieces and those of the other player."""
        own, other = (sum(1 << int(cell) for cell in np.flatnonzero(observation[..., who])) for who in (0, 1))
        values = values_of_moves(observation.shape[:2], own, other, self.depth)
        return int(rng.choice([action for action, value in values.items() if value == max(values.values())]))


class Minimax2(Greedy):
    """Looks two moves ahead: it also blocks a line that the other player would complete."""

    depth = 2


class Minimax4(Greedy):
    """Looks four moves ahead: it also makes and avoids two threats at once."""

    depth = 4


class Perfect(Greedy):
    """Looks ahead to the end of a game of tic-tac-toe, and never loses."""

    depth = 9


class Random:
    """Draws any allowed move, as `--against random` does."""

    def act(self, observation: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> int:
        """Choose a move."""
        return int(rng.choice(np.flatnonzero(mask)))


# --- A tournament ----------------------------------------------------------------------------------------------------

LADDERS: dict[str, list[type]] = {
    "classic/tictactoe-v3": [Random, Greedy, Minimax2, Perfect],
    "classic/connect_four-v3": [Random, Greedy, Minimax2, Minimax4],
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
