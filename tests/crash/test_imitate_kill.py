"""A cloning that is killed, wherever, and resumed has the weights of the one that nobody disturbed, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attempts import Attempt, kill
from forked import ForkServer
from gymnasium import spaces
from recordings import episode, write_dataset

BOUNDS = np.array([1, 1, 8.0], np.float32)
EPOCHS = 7


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    seen = [random.uniform(-1, 1, (9, 3)).astype(np.float32) for _ in range(10)]
    episodes = [episode(each, 2 * each[:-1, :1], ends="truncated") for each in seen]
    folder = tmp_path_factory.mktemp("torques") / "data"
    return write_dataset(folder, spaces.Box(-BOUNDS, BOUNDS), spaces.Box(-2, 2, (1,)), episodes)


def cloning(data: Path) -> list[str]:
    """SAC's entropy is sampled, so that the passes draw random numbers of PyTorch, too."""
    learned = ["--algo", "sac", "--batch-size", "8", "--epochs", str(EPOCHS), "--entropy-coefficient", "0.01"]
    small = ["policy_kwargs.net_arch=[8]", "buffer_size=100", "normalize_observations=true"]
    settings = [word for each in small for word in ("--set", each)]
    return [str(data), "--env", "Pendulum-v1", *learned, *settings, "--seed", "1", "--checkpoint-every", "2",
            "--quiet"]  # fmt: skip


Attempts = Callable[..., Attempt]


@pytest.fixture(scope="module")
def cloned(data: Path, server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Attempts:
    """A cloning in a folder, which is compared with one that nobody disturbed."""
    reference = tmp_path_factory.mktemp("reference")

    def undisturbed() -> Path:
        whole = Attempt(server, reference, cloning(data), lambda: reference, "imitate")
        assert whole.run.exists() or whole.begin().wait() == 0, whole.said
        return whole.run

    return lambda folder: Attempt(server, folder, cloning(data), undisturbed, "imitate")


MANY = [("save", call) for call in range(50, 210, 8)] + [("policies", 1), ("policies", 2)]


@pytest.mark.parametrize(
    "kills",
    [
        [("save", 75), ("save", 30)],
        *(pytest.param([each], marks=pytest.mark.proof) for each in MANY),
    ],
    ids=str,
)
def test_a_cloning_that_was_killed_is_the_one_that_was_not(
    kills: list[tuple[str, int]], cloned: Attempts, tmp_path: Path
) -> None:
    learning = cloned(tmp_path)
    first, *others = kills
    assert learning.begin(**kill(*first)).wait() == -9
    assert [learning.resume(**kill(*each)) for each in others] == [-9] * len(others)
    assert learning.resume() == 0, learning.said
    assert learning.differences() == []


def test_a_training_does_not_go_on_from_it_but_says_what_does(cloned: Attempts, tmp_path: Path) -> None:
    early = "was ended before its first checkpoint: python -m marl_sb3.imitate DATA --hparams {}/config.yaml"
    late = "is not done: python -m marl_sb3.imitate --resume {} goes on with it"
    for call, words in ((3, early), (75, late)):
        (tmp_path / str(call)).mkdir()
        learning = cloned(tmp_path / str(call))
        assert learning.begin(**kill("save", call)).wait() == -9
        assert learning.start(["--resume", str(learning.run), "--quiet"], {}, "train").wait() == 2
        assert words.format(learning.run) in learning.said
    assert learning.start([str(learning.run), "--episodes", "1"], {}, "evaluate").wait() == 0
