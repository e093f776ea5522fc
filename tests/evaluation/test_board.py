"""Boards that are clicked, and names of actions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from live_envs import Clicked, made, small_run
from toy_envs import ScriptedEnv

from marl_sb3.core.envs.converted import SingleAgentEnv
from marl_sb3.core.envs.registry import env_factory, make_env
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.errors import EnvError
from marl_sb3.evaluation.board import Board, board_of, names_of_actions, names_of_cells
from marl_sb3.runs.run import SavedRun


def test_a_click_in_the_arena_moves_to_the_cell_beside() -> None:
    env = ArenaEnv(height=3, width=4)
    env.reset(seed=1)
    corners = {agent: board_of(env, agent) for agent in env.agents}
    assert corners["agent1"] == Board(3, 4, (0, 0, 1, 1), [(0, 1, 1), (1, 0, 2)])
    assert corners["agent2"] == Board(3, 4, (0, 0, 1, 1), [(1, 3, 0), (2, 2, 3)])
    for row, column, action in [(1, 0, 2), (1, 1, 1)]:
        assert (row, column, action) in board_of(env, "agent1").cells  # type: ignore[union-attr]
        env.step({"agent1": action, "agent2": 0})
        assert env.scene()["cells"][0] == row * 4 + column


@pytest.mark.parametrize(
    ("game", "shape", "cells", "names"),
    [
        ("connect_four", (6, 7), {(0, 0): 0, (5, 6): 6, (3, 2): 2}, {0: "column 1", 6: "column 7"}),
        ("tictactoe", (3, 3), {(0, 0): 0, (2, 0): 2, (0, 1): 3}, {0: "row 1, column 1", 5: "row 3, column 2"}),
    ],
)
def test_games_of_pettingzoo_have_boards(game: str, shape: Any, cells: Any, names: Any) -> None:
    env = make_env(env_factory(f"classic/{game}-v3"), 0, {})
    board = board_of(env, env.possible_agents[0])
    assert board is not None
    assert (board.rows, board.columns) == shape
    found = {(row, column): action for row, column, action in board.cells}
    assert found.items() >= cells.items()
    assert len(found) == shape[0] * shape[1]
    called, places = names_of_cells(board, range(len({*found.values()})))
    assert {choice: called[choice] for choice in names} == names
    assert places[0] == (0, 0)


def test_an_env_of_ones_own_says_what_its_cells_mean(tmp_path: Path) -> None:
    with closing(made(small_run(tmp_path / "run", "live_envs:Clicked"))) as game:
        game.begin(0, True, None)
        assert game.controls["agent"].names == ["row 2, column 1", "row 1, column 2"]
        assert board_of(game.viewed, "agent") == Board(2, 2, (0.1, 0, 0.9, 1), [(0, 1, 3), (1, 0, 2)])
        assert game.starts_alike
        for _ in range(3):
            game.advance()
        assert board_of(game.viewed, "agent") == Board(2, 2, (0.1, 0, 0.9, 1), [(0, 1, 3)])
    with closing(made(SavedRun.open(tmp_path / "run", "live_envs:named"))) as game:
        game.begin(0, True, None)
        assert game.controls["agent"].names == ["pull", "push"]


@pytest.mark.parametrize(
    ("cells", "area", "words"),
    [
        (lambda agent: [[0], [1, 2]], (0, 0, 1, 1), "lists of the same length"),
        (lambda agent: {"a": 1}, (0, 0, 1, 1), "lists of the same length"),
        (lambda agent: [], (0, 0, 1, 1), "lists of the same length"),
        (lambda agent: [[0] * 101] * 100, (0, 0, 1, 1), "at most 10000 cells"),
        (lambda agent: [[1 // 0]], (0, 0, 1, 1), "raised ZeroDivisionError"),
        (lambda agent: [[0]], (0, 0, 1, 2), "board_area"),
        (lambda agent: [[0]], "left", "board_area"),
    ],
)
def test_what_an_env_says_wrongly_is_refused(
    cells: Callable[[str], Any], area: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Clicked()
    env.reset()
    monkeypatch.setattr(env, "cell_actions", cells)
    monkeypatch.setattr(Clicked, "metadata", {**Clicked.metadata, "board_area": area})
    with pytest.raises(EnvError, match=words):
        board_of(SingleAgentEnv(env), "agent")


def test_actions_are_called_as_the_env_says(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ScriptedEnv()
    assert names_of_actions(env, "a", 3) == []
    monkeypatch.setattr(env, "action_meanings", {"a": ["x", "y", "z"]}, raising=False)
    assert (names_of_actions(env, "a", 3), names_of_actions(env, "b", 3)) == (["x", "y", "z"], [])
    monkeypatch.setattr(env, "action_meanings", ("NOOP", "FIRE"))
    assert (names_of_actions(env, "a", 2), names_of_actions(env, "a", 3)) == (["NOOP", "FIRE"], [])
    assert names_of_actions(ArenaEnv(), "agent1", 4) == ["up", "right", "down", "left"]
