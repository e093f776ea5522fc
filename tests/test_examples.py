"""Every example runs, as a user would run it."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from forked import ForkServer

EXAMPLES = Path(__file__).parent.parent / "examples"

# A short way to run each, and what it must print.
RUNS = {
    "random_agents.py": (["--episodes", "2"], r"episode 1: agent1 -?\d+\.\d, agent2 -?\d+\.\d"),
    "two_learning_rates.py": (["--env-steps", "2000"], r"2000 env steps: explorer \(lr 0.001\) .*hunter \(lr 0.0003\)"),
    "central_critic.py": (["--env-steps", "2000"], r"return -?\d+\.\d after 2000 env steps"),
    "custom_callback.py": (["--env-steps", "2000"], r"2000 env steps: \d+\.\d new fields on average, \d+ at best"),
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
        r"tictactoe-v3: Perfect wins \d+% against Minimax2, and loses 0%\n.* Centre wins [6-9]\d% against Random"
        r".*\n.* Minimax2 wins (90|9\d|100)% against Centre.*\n.* Minimax4 wins [6-9]\d% against Minimax2"
        r".*\n.* Lines2 wins (\d\d|100)% against Minimax4",
    ),
    "one_file.py": (["--timesteps", "2000"], r"return agent1 .* entropy agent2\n +2,000( +-?\d+\.\d{3}){6}\n$"),
    "own_network.py": (["--env-steps", "1000"], r"loaded ckpt-000001: 800 weights embed 100 cells"),
    "own_policy.py": (["--env-steps", "1000"], r"1000 env steps; the loaded ResidualPolicy chooses .*: True"),
    "reinforce.py": (["--env-steps", "2000"], r"2000 env steps: mean returns agent1 \(Reinforce\) -?\d"),
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


def test_the_cells_of_the_notebook_run(in_tmp: Path, server: ForkServer) -> None:
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells), "strip the outputs"
    (in_tmp / "cells.py").write_text("\n".join(cell.source for cell in cells).replace("60_000", "6_000"))
    assert server.run(["cells.py"], "out").wait() == 0, Path("out").read_text()
    assert "6,000 env steps" in Path("out").read_text()


@pytest.mark.proof
def test_notebook_runs(in_tmp: Path) -> None:
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    done = NotebookClient(notebook, timeout=120).execute()
    text = "".join(output.get("text", "") for cell in done.cells for output in cell.get("outputs", []))
    assert "60,000 env steps" in text
