"""Players of tic-tac-toe and connect four that look ahead, from weak to strong: measures of how well a policy plays.

Those of minimax are compiled with numba; those of Monte Carlo tree search need OpenSpiel.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import compiled
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, BoolArray

WORTH = (0, 1, 10, 100)  # of a line in which one player has so many pieces, and the other has none
WIN = 10_000  # is worth more than all lines together

_LATER = 0.9  # what a win is worth one move later


# --- Minimax ---------------------------------------------------------------------------------------------------------


class Rules(NamedTuple):
    """A game in which two players fill cells by turns; whoever completes a line wins."""

    columns: int
    falls: bool  # a piece falls to the lowest free cell of the column that is the action; else actions are cells
    lines: Array  # (lines, cells of a line)
    lines_of: Array  # (cells, most lines, cells of a line) those through each cell; unused places are -1


_IN_LINE = {(3, 3): 3, (6, 7): 4}  # cells in a line that wins, by rows and columns of the board


@cache
def rules_of(shape: tuple[int, int]) -> Rules:
    """Return the rules of tic-tac-toe or connect four.

    Args:
        shape: rows and columns of the board.

    Raises:
        ConfigError: it is the board of another game.
    """
    if shape not in _IN_LINE:
        raise ConfigError(f"a board of {shape}; accepted: those of tic-tac-toe (3, 3) and connect four (6, 7)")
    rows, columns = shape
    steps = np.arange(_IN_LINE[shape])
    lines = [
        (row + down * steps) * columns + column + right * steps
        for row, column in np.ndindex(shape)
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
        if row + down * steps[-1] < rows and 0 <= column + right * steps[-1] < columns
    ]
    through = [[line for line in lines if cell in line] for cell in range(rows * columns)]
    lines_of = np.full((rows * columns, max(map(len, through)), len(steps)), -1)
    for cell, own in enumerate(through):
        lines_of[cell, : len(own)] = own
    return Rules(columns, shape == (6, 7), np.array(lines), lines_of)


_inner_kernel: Callable[[Any], Any] = partial(compiled, nogil=True, no_cpython_wrapper=True)


@_inner_kernel
def _cell_of(rules: Rules, board: Array, action: int) -> int:
    """Return the cell that an action fills; negative if it is not possible."""
    if not rules.falls:
        return action if board[action] == 0 else -1
    cell = board.size - rules.columns + action
    while cell >= 0 and board[cell] != 0:
        cell -= rules.columns
    return cell


@_inner_kernel
def _pieces(line: Array, board: Array, player: int) -> tuple[int, int]:
    """Return how many cells of a line a player has, and how many the other one has."""
    mine = others = 0
    for cell in line:
        mine += board[cell] == player
        others += board[cell] == -player
    return mine, others


@_inner_kernel
def _gain(rules: Rules, board: Array, player: int, cell: int) -> int:
    """Return what a move adds to the worth of the lines; `WIN` if it completes one."""
    gain = 0
    for line in rules.lines_of[cell]:
        if line[0] < 0:
            break
        mine, others = _pieces(line, board, player)
        if mine == line.size - 1:
            return WIN
        if others == 0:
            gain += WORTH[mine + 1] - WORTH[mine]
        elif mine == 0:
            gain += WORTH[others]
    return gain


@partial(compiled, nogil=True)
def _values_of_moves(rules: Rules, board: Array, depth: int, counts: bool) -> Array:
    # A loop instead of a recursion, whose compiled code numba cannot load again. By moves made, 0 to depth - 1:
    actions = rules.columns if rules.falls else board.size
    following, cells, worth = np.zeros(depth, np.int64), np.zeros(depth, np.int64), np.zeros(depth, np.int64)
    best = np.full(depth, -np.inf)
    values = np.full(actions, -np.inf)
    for line in rules.lines:
        mine, others = _pieces(line, board, 1)
        if mine == 0 or others == 0:
            worth[0] += WORTH[mine] - WORTH[others]
    made = 0
    while made > 0 or following[0] < actions:
        if following[made] == actions:  # all moves of this position were tried: what the one before is worth follows
            value = -_LATER * best[made] if best[made] > -np.inf else 0.0
            made -= 1
            board[cells[made]] = 0
        else:
            cell = _cell_of(rules, board, following[made])
            following[made] += 1
            if cell < 0:
                continue
            player = 1 if made % 2 == 0 else -1
            gain = _gain(rules, board, player, cell)
            if gain < WIN and made < depth - 1:
                board[cell], cells[made] = player, cell
                made += 1
                following[made], best[made], worth[made] = 0, -np.inf, -(worth[made - 1] + gain)
                continue
            value = (worth[made] + gain) / WIN if counts else 0.0
            value = 1.0 if gain >= WIN else value
        if made == 0:
            values[following[0] - 1] = value
            continue
        best[made] = max(best[made], value)
        if made > 1 and best[made] >= -best[made - 1] / _LATER:  # the other player has a better move than to come here
            following[made] = actions
    return values


@lru_cache(2**12)
def _remembered(shape: tuple[int, int], pieces: bytes, depth: int, counts: bool) -> Array:
    values: Array = _values_of_moves(rules_of(shape), np.frombuffer(pieces, np.int8).copy(), depth, counts)
    values.setflags(write=False)  # all callers get the same array
    return values


def values_of_moves(board: Array, depth: int, *, counts: bool = False) -> Array:
    """Return the values of the moves of a position by minimax: 1 for a win, -1 for a loss, nearer to 0 for later ones.

    Args:
        board: (rows, columns) int8, 1 where the player has a piece whose turn it is, -1 where the other one has.
        depth: moves to look ahead.
        counts: whether what is not seen has the value of the lines that can still be completed, see `WORTH`, which is
            never as much as a win; else it has the value 0.

    Returns:
        (actions,); minus infinity for moves that are not possible.

    Raises:
        ConfigError: it is the board of another game.
    """
    return _remembered(board.shape, board.tobytes(), depth, counts)


class Greedy:
    """Looks one move ahead: it wins where it can, and else draws any move."""

    depth, counts = 1, False

    def act(self, observation: Array, mask: BoolArray, rng: np.random.Generator) -> int:
        """Choose a best move, by what the env shows: (rows, columns, 2), own pieces and those of the other player."""
        own, other = (observation[..., who].astype(np.int8) for who in (0, 1))
        if self.counts and not own.any():  # otherwise all games against a player that draws nothing would be the same
            return int(rng.choice(np.flatnonzero(mask)))
        values = values_of_moves(own - other, self.depth, counts=self.counts)
        return int(rng.choice(np.flatnonzero(values == values.max())))


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


class Perfect(Greedy):
    """Looks ahead to the end of a game of tic-tac-toe, and never loses."""

    depth = 9


class Sparring:
    """Somebody to train against: each move is that of another player, and one in ten is drawn, so that games differ."""

    players = (Minimax2(), Lines2(), Lines3())

    def act(self, observation: Array, mask: BoolArray, rng: np.random.Generator) -> int:
        """Choose a move."""
        if rng.random() < 0.1:
            return int(rng.choice(np.flatnonzero(mask)))
        return self.players[rng.integers(len(self.players))].act(observation, mask, rng)


# --- Monte Carlo tree search -----------------------------------------------------------------------------------------


class MCTS10:
    """Plays connect four by OpenSpiel's Monte Carlo tree search, with so many simulations for each move.

    Raises:
        ImportError: OpenSpiel is missing.
    """

    simulations = 10

    def __init__(self) -> None:
        try:
            import pyspiel
        except ImportError as error:
            raise ImportError("tree search needs OpenSpiel: pip install 'marl-sb3[openspiel]'") from error
        self._spiel: Any = pyspiel
        self.game = pyspiel.load_game("connect_four")

    def state(self, observation: Array) -> Any:
        """Return what OpenSpiel calls a board that the env shows to the player whose turn it is."""
        own, other = observation[::-1, :, 0], observation[::-1, :, 1]  # its rows begin below
        me, you = "xo" if own.sum() == other.sum() else "ox"  # x begins
        board = np.where(own, me, np.where(other, you, "."))
        about = {"board": board.tolist(), "current_player": me, "is_terminal": False, "winner": ""}
        return self.game.new_initial_state(json.dumps(about))

    def act(self, observation: Array, mask: Any, rng: np.random.Generator) -> int:
        """Search with the settings of OpenSpiel's own example: a UCT constant of 2, and what is proven is kept."""
        of_rollouts, of_search = rng.integers(2**31, size=2).tolist()
        evaluator = self._spiel.RandomRolloutEvaluator(1, of_rollouts)
        bot = self._spiel.MCTSBot(self.game, evaluator, 2.0, self.simulations, 100, True, of_search, False)
        return int(bot.step(self.state(observation)))


class MCTS100(MCTS10):
    """The same with 100 simulations."""

    simulations = 100


class MCTS1000(MCTS10):
    """The same with 1,000 simulations."""

    simulations = 1000
