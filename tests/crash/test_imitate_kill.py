"""A cloning that is killed, wherever, and resumed has the weights of the one that nobody disturbed, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from forked import ForkServer
from gymnasium import spaces
from recordings import episode, write_dataset
from run_records import differences

BOUNDS = np.array([1, 1, 8.0], np.float32)
EPOCHS = 7
Kill = tuple[str, int]  # the place and the number of the call; see `shims`


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    seen = [random.uniform(-1, 1, (9, 3)).astype(np.float32) for _ in range(10)]
    episodes = [episode(each, 2 * each[:-1, :1], ends="truncated") for each in seen]
    folder = tmp_path_factory.mktemp("torques") / "data"
    return write_dataset(folder, spaces.Box(-BOUNDS, BOUNDS), spaces.Box(-2, 2, (1,)), episodes)


def cloning(data: Path, run: Path) -> list[str]:
    """SAC's entropy is sampled, so that the passes draw random numbers of PyTorch, too."""
    learned = ["--algo", "sac", "--batch-size", "8", "--epochs", str(EPOCHS), "--entropy-coefficient", "0.01"]
    small = ["policy_kwargs.net_arch=[8]", "buffer_size=100", "normalize_observations=true"]
    settings = [word for each in small for word in ("--set", each)]
    return [str(data), "--env", "Pendulum-v1", *learned, *settings, "--seed", "1", "--checkpoint-every", "2",
            "--run-dir", str(run), "--quiet"]  # fmt: skip


def imitate(server: ForkServer, folder: Path, *arguments: str, kill: Kill | None = None) -> int:
    shims = {} if kill is None else {"kill": {"place": kill[0], "call": kill[1], "moment": "before"}}
    return server.run(["-m", "marl_sb3.imitate", *arguments], folder / "output.txt", shims=shims).wait()


@pytest.fixture(scope="module")
def reference(data: Path, server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    assert imitate(server, folder, *cloning(data, folder / "run")) == 0
    return folder / "run"


MANY = [("save", call) for call in range(50, 210, 8)] + [("policies", 1), ("policies", 2)]


@pytest.mark.parametrize(
    ("kill", "again"),
    [
        (("save", 75), ("save", 30)),
        pytest.param(("policies", 1), None, marks=pytest.mark.proof),
        *(pytest.param(kill, None, marks=pytest.mark.proof) for kill in MANY),
    ],
)
def test_a_cloning_that_was_killed_is_the_one_that_was_not(
    kill: tuple[str, int],
    again: tuple[str, int] | None,
    data: Path,
    server: ForkServer,
    reference: Path,
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    assert imitate(server, tmp_path, *cloning(data, run), kill=kill) == -9
    if again is not None:
        assert imitate(server, tmp_path, "--resume", str(run), "--quiet", kill=again) == -9
    assert imitate(server, tmp_path, "--resume", str(run), "--quiet") == 0, (tmp_path / "output.txt").read_text()
    assert differences(reference, run) == []


def test_a_training_does_not_go_on_from_it_but_says_what_does(data: Path, server: ForkServer, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    early = "was ended before its first checkpoint: python -m marl_sb3.imitate DATA --hparams {}/config.yaml"
    late = "is not done: python -m marl_sb3.imitate --resume {} goes on with it"
    for call, words in ((3, early), (75, late)):
        run = tmp_path / f"run{call}"
        assert imitate(server, tmp_path, *cloning(data, run), kill=("save", call)) == -9
        process = server.start(["--resume", str(run), "--quiet"], {}, output)
        assert process.wait() == 2
        assert words.format(run) in output.read_text()
    assert server.run(["-m", "marl_sb3.evaluate", str(run), "--episodes", "1"], output).wait() == 0
