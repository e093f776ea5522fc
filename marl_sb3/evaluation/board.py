"""Boards that are clicked: which action a cell of an env's picture means, and what actions are called.

An env says it by a method `cell_actions(agent)`: rows of cells from the top of its picture, each with the action that a
click on it means, or None. They divide the picture evenly, or the part of it in `metadata["board_area"]`: left, top,
right and bottom in shares of its sides. `metadata["action_names"]` or an attribute `action_meanings` has names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from pettingzoo import ParallelEnv

from marl_sb3.errors import EnvError, described
from marl_sb3.types import AgentID
from marl_sb3.wrappers.checks import innermost_env

_MOST_CELLS = 10_000
_Area = tuple[float, float, float, float]
_WHOLE: _Area = (0.0, 0.0, 1.0, 1.0)
# Games of PettingZoo: their cells, and the part of their pictures that has cells.
_KNOWN: Mapping[str, tuple[list[list[int]], _Area]] = {
    "connect_four": ([list(range(7))] * 6, (0.0404, 0.0459, 0.9596, 0.9528)),
    "tictactoe": ([[row, row + 3, row + 6] for row in range(3)], (0.02, 0.02, 0.99, 0.97)),
}
# What the agents of PettingZoo's games have on the board, in the order of the agents, which is that of their moves.
_MARKS = {"connect_four": ("red", "black"), "tictactoe": ("X", "O"), "chess": ("white", "black")}


class Board(Struct):
    """The cells of a picture that mean an action of an agent."""

    rows: int  # in which they stand
    columns: int  # as `rows`
    area: _Area  # left, top, right, bottom of all cells, in shares of the picture
    # row and column, counted from 0 at the upper left, and the action, as the env takes it
    cells: list[tuple[int, int, Any]]


def board_of(env: ParallelEnv, agent: AgentID) -> Board | None:
    """Return the board of an env for an agent; None if its picture has no cells that mean something.

    Raises:
        EnvError: the env says it wrongly.
    """
    metadata = _metadata(env)
    known = _KNOWN.get(_game(metadata))
    cells, area = known or (None, metadata.get("board_area", _WHOLE))
    if callable(own := _told(env, "cell_actions")):
        try:
            cells, area = own(agent), metadata.get("board_area", _WHOLE)
        except Exception as error:  # in the code of the env
            raise EnvError(f"cell_actions({agent!r}) raised {described(error)}") from error
    if cells is None:
        return None
    if not _are_cells(cells):
        accepted = f"lists of the same length, one for each row, of at most {_MOST_CELLS} cells in all"
        raise EnvError(f"cell_actions({agent!r}) returned {cells!r:.100}; accepted: {accepted}")
    if not _is_area(area):
        accepted = "left, top, right, bottom in shares of the picture, such as (0, 0, 1, 1)"
        raise EnvError(f"the env's metadata has the board_area {area!r:.100}; accepted: {accepted}")
    actions = [(row, column, action) for row, line in enumerate(cells) for column, action in enumerate(line)]
    meant = [(row, column, np.asarray(action).tolist()) for row, column, action in actions if action is not None]
    return Board(len(cells), len(cells[0]), area, meant)


def marks_of(env: ParallelEnv) -> Sequence[str]:
    """Return what each agent has on the board, such as `red`; nothing if that is not known."""
    return _MARKS.get(_game(_metadata(env)), ())


def _game(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("name", "")).rpartition("_v")[0]


def _are_cells(cells: Any) -> bool:
    if not isinstance(cells, (Sequence, np.ndarray)) or not all(
        isinstance(row, (Sequence, np.ndarray)) for row in cells
    ):
        return False
    lengths = {len(row) for row in cells}
    return len(lengths) == 1 and 0 < len(cells) * max(lengths) <= _MOST_CELLS


def _is_area(area: Any) -> bool:
    if not isinstance(area, Sequence) or len(area) != 4 or not all(isinstance(each, (int, float)) for each in area):
        return False
    left, top, right, bottom = area
    return bool(0 <= left < right <= 1 and 0 <= top < bottom <= 1)


def _metadata(env: ParallelEnv) -> Mapping[str, Any]:
    metadata = _told(env, "metadata")
    return metadata if isinstance(metadata, Mapping) else {}


def _told(env: ParallelEnv, name: str) -> Any:
    """Return an attribute of an env, or of a wrapper around it, the outermost first."""
    outer = getattr(env, name, None)
    return outer if outer is not None else getattr(innermost_env(env), name, None)


# --- Names of actions ------------------------------------------------------------------------------------------------


def names_of_actions(env: ParallelEnv, agent: AgentID, n: int) -> list[str]:
    """Return the names of an agent's n choices that an env has; none if it has no such list."""
    names = _metadata(env).get("action_names") or _told(env, "action_meanings")
    if names is None and callable(of_ale := _told(env, "get_action_meanings")):
        names = of_ale()
    if isinstance(names, Mapping):
        names = names.get(agent)
    return [str(name) for name in names] if isinstance(names, Sequence) and len(names) == n else []


def names_of_cells(board: Board, choices: Sequence[int]) -> tuple[list[str], list[tuple[int, int]]]:
    """Name choices by their cells: by a column or a row that is all theirs, or by their one cell.

    Returns:
        The names, and the uppermost, leftmost cell of each; nothing if a choice has other cells, or none.
    """
    names, places = list[str](), list[tuple[int, int]]()
    for choice in choices:
        cells = [(row, column) for row, column, action in board.cells if action == choice]
        rows, columns = {row for row, _ in cells}, {column for _, column in cells}
        if len(columns) == 1 and len(rows) == board.rows:
            names.append(f"column {min(columns) + 1}")
        elif len(rows) == 1 and len(columns) == board.columns:
            names.append(f"row {min(rows) + 1}")
        elif len(cells) == 1:
            names.append(f"row {min(rows) + 1}, column {min(columns) + 1}")
        else:
            return [], []
        places.append(min(cells))
    return names, places
