"""Players of tic-tac-toe and connect four, from weak to strong, for `evaluate --against examples.opponents:Minimax2`.

Alone, it lets them play against each other: `python examples/opponents.py --games 50`. The players of Monte Carlo tree
search need OpenSpiel.
"""

import argparse
import json
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pettingzoo

try:
    import pyspiel
except ImportError:
    pyspiel = None

IN_LINE = {(3, 3): 3, (6, 7): 4}  # cells in a line that win, by rows and columns of the board
WORTH = (0, 1, 10, 100)  # of a line in which one player has so many pieces, and the other has none
WIN = 10_000  # is worth more than all lines together

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


@cache
def all_lines(shape: Shape) -> set[int]:
    """All lines of a board that win."""
    return {line for lines in lines_through(shape) for line in lines}


def cells_of_moves(shape: Shape, taken: int) -> dict[int, int]:
    """Action -> the cell that it fills, of the moves that are possible."""
    rows, columns = shape
    if shape == (3, 3):
        free = {cell: cell for cell in range(rows * columns)}
    else:  # a piece falls to the lowest free cell of its column
        heights = [sum(taken >> (y * columns + x) & 1 for y in range(rows)) for x in range(columns)]
        free = {x: (rows - 1 - height) * columns + x for x, height in enumerate(heights) if height < rows}
    return {action: cell for action, cell in free.items() if not taken >> cell & 1}


def worth_of_lines(shape: Shape, own: int, other: int) -> int:
    """What the lines are worth that a player could still complete, less those of the other player."""
    pieces = [((line & own).bit_count(), (line & other).bit_count()) for line in all_lines(shape)]
    return sum(WORTH[mine] - WORTH[others] for mine, others in pieces if not mine or not others)


def worth_of_move(shape: Shape, own: int, other: int, cell: int) -> int:
    """What a move into a cell adds to `worth_of_lines`."""
    total = 0
    for line in lines_through(shape)[cell]:
        mine, others = (line & own).bit_count(), (line & other).bit_count()
        if not others:
            total += WORTH[mine + 1] - WORTH[mine]
        elif not mine:
            total += WORTH[others]
    return total


@lru_cache(2**18)
def values_of_moves(shape: Shape, own: int, other: int, depth: int, worth: int | None = None) -> dict[int, float]:
    """Action -> its value by minimax: 1 for a win, -1 for a loss, less for later ones.

    What is not seen has the value 0; or that of the lines, which are now worth `worth`, and never as much as a win.
    """
    values, lines_of = {}, lines_through(shape)
    for action, cell in cells_of_moves(shape, own | other).items():
        mine = own | 1 << cell
        if any(mine & line == line for line in lines_of[cell]):
            values[action] = 1.0
            continue
        then = None if worth is None else worth + worth_of_move(shape, own, other, cell)
        if depth == 1:
            values[action] = (then or 0) / WIN
        else:
            replies = values_of_moves(shape, other, mine, depth - 1, None if then is None else -then)
            values[action] = -0.9 * max(replies.values(), default=0.0)
    return values


class Greedy:
    """Looks one move ahead: it wins where it can, and else draws any move."""

    depth, counts = 1, False

    def act(self, observation: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> int:
        """Choose a best move, by what the env shows: (rows, columns, 2), own pieces and those of the other player."""
        own, other = (sum(1 << int(cell) for cell in np.flatnonzero(observation[..., who])) for who in (0, 1))
        if self.counts and not own:  # otherwise all games against a player that draws nothing would be the same
            return int(rng.choice(np.flatnonzero(mask)))
        shape = observation.shape[:2]
        worth = worth_of_lines(shape, own, other) if self.counts else None
        values = values_of_moves(shape, own, other, self.depth, worth)
        return int(rng.choice([action for action, value in values.items() if value == max(values.values())]))


class Minimax2(Greedy):
    """Looks two moves ahead: it also blocks a line that the other player would complete."""

    depth = 2


class Minimax4(Greedy):
    """Looks four moves ahead: it also makes and avoids two threats at once."""

    depth = 4


class Lines2(Minimax2):
    """Also counts the pieces in lines that a player could still complete, after two moves; its first move is drawn."""

    counts = True


class Lines3(Lines2):
    """The same, three moves ahead."""

    depth = 3


class Lines4(Lines2):
    """The same, four moves ahead."""

    depth = 4


class Perfect(Greedy):
    """Looks ahead to the end of a game of tic-tac-toe, and never loses."""

    depth = 9


class Random:
    """Draws any allowed move, as `--against random` does."""

    def act(self, observation: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> int:
        """Choose a move."""
        return int(rng.choice(np.flatnonzero(mask)))


class Sparring:
    """Somebody to train against: each move is that of another player, and one in ten is drawn, so that games differ."""

    players = (Minimax2(), Lines2(), Lines3())

    def act(self, observation: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> int:
        """Choose a move."""
        player = Random() if rng.random() < 0.1 else self.players[rng.integers(len(self.players))]
        return player.act(observation, mask, rng)


class MCTS10:
    """Plays connect four by OpenSpiel's Monte Carlo tree search, with so many simulations for each move."""

    simulations = 10

    def __init__(self) -> None:
        if pyspiel is None:
            raise ImportError("it needs OpenSpiel, the extra openspiel")
        self.game = pyspiel.load_game("connect_four")

    def state(self, observation: np.ndarray) -> Any:
        """What OpenSpiel calls a board that the env shows to the player whose turn it is; its rows begin below."""
        own, other = observation[::-1, :, 0], observation[::-1, :, 1]
        me, you = "xo" if own.sum() == other.sum() else "ox"  # x begins
        board = np.where(own, me, np.where(other, you, "."))
        about = {"board": board.tolist(), "current_player": me, "is_terminal": False, "winner": ""}
        return self.game.new_initial_state(json.dumps(about))

    def act(self, observation: np.ndarray, mask: Any, rng: np.random.Generator) -> int:
        """Search with the settings of OpenSpiel's own example: a UCT constant of 2, and what is proven is kept."""
        of_rollouts, of_search = rng.integers(2**31, size=2).tolist()
        evaluator = pyspiel.RandomRolloutEvaluator(1, of_rollouts)
        bot = pyspiel.MCTSBot(self.game, evaluator, 2.0, self.simulations, 100, True, of_search, False)
        return int(bot.step(self.state(observation)))


class MCTS100(MCTS10):
    """The same with 100 simulations."""

    simulations = 100


class MCTS1000(MCTS10):
    """The same with 1,000 simulations."""

    simulations = 1000


# --- A tournament ----------------------------------------------------------------------------------------------------

LADDERS: dict[str, list[type]] = {
    "classic/tictactoe-v3": [Random, Greedy, Minimax2, Perfect],
    "classic/connect_four-v3": [Random, Greedy, Minimax2, Minimax4, Lines2],
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
