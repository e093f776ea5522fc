"""Every example runs, as a user would run it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pettingzoo
import pytest
from forked import ForkServer
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"

# A short way to run each, and what it must print.
RUNS = {
    "random_agents.py": (["--episodes", "2"], r"episode 1: agent1 -?\d+\.\d, agent2 -?\d+\.\d"),
    "two_learning_rates.py": (["--env-steps", "4000"], r"4000 env steps: explorer \(lr 0.001\) .*hunter \(lr 0.0003\)"),
    "central_critic.py": (["--env-steps", "2000"], r"return -?\d+\.\d after 2000 env steps"),
    "custom_callback.py": (["--env-steps", "4000"], r"4000 env steps: \d+\.\d new fields on average, \d+ at best"),
    "league.py": (
        ["--env-steps", "4096", "--every", "1"],
        r"4096 env steps: \d+% of the points against a pool of 1, \d+% of all moves",
    ),
    "offline_d3rlpy.py": (  # learns, too, where d3rlpy is; it needs an older gymnasium than marl_sb3
        ["data", "--env-steps", "2048", "--updates", "100"],
        r"\d+ episodes: mean return \d+\.\d, of the last 20 \d+\.\d\nd3rlpy(, 100 updates: mean| is not installed)",
    ),
    "opponents.py": (
        ["--games", "20"],
        r"tictactoe-v3: Perfect wins \d+% against Minimax2, and loses 0%\n.* Greedy wins [6-9]\d% against Random"
        r".*\n.* Minimax2 wins (90|100)% against Greedy.*\n.* Minimax4 wins [6-9]\d% against Minimax2"
        r".*\n.* Lines2 wins (\d\d|100)% against Minimax4",
    ),
    "one_file.py": (["--timesteps", "2000"], r"return agent1 .* entropy agent2\n +2,000( +-?\d+\.\d{3}){6}\n$"),
    "own_network.py": (["--env-steps", "1000"], r"loaded ckpt-000001: 800 weights embed 100 cells"),
    "own_policy.py": (["--env-steps", "1000"], r"1000 env steps; the loaded ResidualPolicy chooses .*: True"),
    "reinforce.py": (["--env-steps", "4000"], r"4000 env steps: mean returns agent1 \(Reinforce\) -?\d"),
    "search.py": (
        ["--trials", "1", "--env-steps", "4000"],
        r"trial 0: the weaker agent's return is -?\d+\.\d with agent1.learning_rate \S+, agent2.learning_rate",
    ),
}


ELSEWHERE = {"shared_counter.py", "policy_client.py"}  # see crash/test_ray.py and tools/serving/test_external.py


def test_every_example_has_a_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(RUNS) | ELSEWHERE


@pytest.mark.parametrize("name", RUNS)
def test_example_runs(name: str, in_tmp: Path, server: ForkServer) -> None:
    arguments, expected = RUNS[name]
    example = server.run(["-W", "error::UserWarning", str(EXAMPLES / name), *arguments], "out", "err")
    assert example.wait() == 0, Path("err").read_text()
    shown = Path("out").read_text()
    assert re.search(expected, shown), shown


@pytest.fixture
def opponents(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("opponents")


def board(text: str) -> np.ndarray:
    """What connect four shows the player `x`, who is to move; rows from the top, those that are left out are empty."""
    rows = text.split()
    shown = np.zeros((6, 7, 2), np.int8)
    shown[-len(rows) :] = np.array([[[cell == who for who in "xo"] for cell in row] for row in rows])
    return shown


def test_players_that_count_lines_prefer_cells_of_many_lines(opponents: Any) -> None:
    own, other = 1 << 38, 1 << 35  # in the lowest row, the middle and the left
    # A column and its diagonals: 7 lines lead through the middle of the lowest row, 3 through its end. One has both.
    assert opponents.worth_of_lines((6, 7), own, other) == (7 - 1) - (3 - 1)
    assert opponents.worth_of_lines((6, 7), other, own) == (3 - 1) - (7 - 1)
    moves = [opponents.Lines2().act(board("o..xo.."), np.ones(7, bool), np.random.default_rng(n)) for n in range(3)]
    assert len(set(moves)) == 1  # what is counted decides, and not the draw
    first = [opponents.Lines2().act(board("......."), np.ones(7, bool), np.random.default_rng(n)) for n in range(9)]
    assert len(set(first)) > 1


def test_a_sparring_partner_plays_well_nine_times_in_ten(opponents: Any) -> None:
    seen, mask = board("ooo.... xxx...."), np.ones(7, bool)
    won = [opponents.Sparring().act(seen, mask, np.random.default_rng(n)) for n in range(99)]
    assert 80 < won.count(3) < 99


def test_players_of_tree_search_see_the_board_of_the_env(opponents: Any) -> None:
    pytest.importorskip("pyspiel")
    player, rng = opponents.MCTS10(), np.random.default_rng(0)
    env, outcomes = pettingzoo.make("aec", "classic/connect_four-v3"), []
    for _ in range(30):
        env.reset()
        state = player.game.new_initial_state()
        while not state.is_terminal():
            observation, *_ = env.last()
            rebuilt = player.state(observation["observation"])
            assert str(rebuilt) == str(state)
            assert rebuilt.current_player() == state.current_player()
            assert rebuilt.legal_actions() == np.flatnonzero(observation["action_mask"]).tolist()
            action = int(rng.choice(rebuilt.legal_actions()))
            env.step(action)
            state.apply_action(action)
            rebuilt.apply_action(action)
            assert rebuilt.is_terminal() == state.is_terminal()
        outcomes.append([env.rewards[agent] for agent in env.possible_agents])
        assert outcomes[-1] == state.returns() == rebuilt.returns()
    assert [1, -1] in outcomes
    assert [-1, 1] in outcomes


def test_players_of_tree_search_win_and_block(opponents: Any) -> None:
    pytest.importorskip("pyspiel")
    for text, column in (("ooo.... xxx....", 3), ("xooo.x.", 4)):
        assert opponents.MCTS100().act(board(text), np.ones(7, bool), np.random.default_rng(0)) == column


def test_the_cells_of_the_notebook_run(in_tmp: Path, server: ForkServer) -> None:
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells), "strip the outputs"
    (in_tmp / "cells.py").write_text("\n".join(cell.source for cell in cells).replace("60_000", "6_000"))
    assert server.run(["cells.py"], "out").wait() == 0, Path("out").read_text()
    assert "6,000 env steps" in Path("out").read_text()


@pytest.mark.proof
def test_notebook_runs(in_tmp: Path) -> None:
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    done = NotebookClient(notebook, timeout=120).execute()
    text = "".join(output.get("text", "") for cell in done.cells for output in cell.get("outputs", []))
    assert "60,000 env steps" in text
