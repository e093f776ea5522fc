"""Every example runs, as a user would run it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import nbformat
import pytest
from forked import ForkServer
from nbclient import NotebookClient

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


NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
# A short way to run them: what is replaced in the cells.
SHORTER = {
    "quickstart.ipynb": {"60_000": "4_000", "20_000": "4_000", "n_episodes=20": "n_episodes=2", "trials=4": "trials=1"},
    "teams.ipynb": {"6_000": "400", '"learning_starts": 1600': '"learning_starts": 200'},
}


def shown(path: Path, shorter: Mapping[str, str]) -> str:
    """What a notebook shows when all of its cells are run: text, and kinds of pictures."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None), "strip the outputs"
        for text, less in shorter.items():
            cell.source = cell.source.replace(text, less)
    done = NotebookClient(notebook, timeout=120).execute()
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    assert not any("IProgress" in output.text for output in outputs if output.get("name") == "stderr")  # of tqdm
    data = [output.data for output in outputs if "data" in output]
    kinds = [kind for each in data for kind in each if kind.startswith("image/")]
    return "\n".join([*kinds, *("".join(each.get("text/html", each.get("text/plain", ""))) for each in data)])


def check_pictures(name: str, text: str) -> None:
    assert text.count("image/png") == {"quickstart.ipynb": 2, "teams.ipynb": 1}[name]  # learning curves
    assert text.count("image/gif") == (name == "quickstart.ipynb")
    assert text.count("<table>") >= 2  # of the run and of the search, or of the comparison


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_progress_tables_and_plots(path: Path, in_tmp: Path) -> None:
    text = shown(path, SHORTER[path.name])
    assert re.search(r"[\d,]+ of [\d,]+ env steps.* elapsed", text)
    check_pictures(path.name, text)


@pytest.mark.proof
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_whole(path: Path, in_tmp: Path) -> None:
    check_pictures(path.name, shown(path, {}))
