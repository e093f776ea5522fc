"""An env of the user's own, `package.module:factory`, in every command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from marl_sb3 import evaluate, export, train, tune

SMALL = ["--set", "n_steps=6", "--set", "batch_size=6", "--set", "n_envs=2", "--timesteps", "12", "--seed", "1"]
TRAIN = ["toy_envs:ScriptedEnv", *SMALL, "--quiet"]
TUNE = ["--trials", "1", "--evaluations", "1", "--evaluation-episodes", "1", "--grid", "gamma=0.9"]
MAINS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train.main,
    "tune": tune.main,
    "evaluate": evaluate.main,
    "export": export.main,
}

LATER = [
    "train --resume run --timesteps 12 --quiet",
    "train --hparams run/config.yaml --quiet",
    "tune --study s",
    "evaluate run --episodes 2",
    "export run",
]


def command(line: str) -> int:
    name, *words = shlex.split(line)
    return MAINS[name](words)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and a study of an env of one's own."""
    folder = tmp_path_factory.mktemp("own")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train.main([*TRAIN, "--run-dir", "run"]) == 0
        search = tune.build_parser().parse_args([*TRAIN[:-1], *TUNE, "--study", "s"])
        tune._study(search)
    return folder


@pytest.mark.parametrize("line", LATER)
def test_the_refusal_of_a_later_command_names_the_option_that_makes_it_work(
    begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    monkeypatch.chdir(begun)
    assert command(line) == 2
    refusal = capsys.readouterr().err
    option = re.search(r"if you trust this code, add (--env \S+) to the command", refusal)
    assert option is not None, refusal
    assert option[1] == "--env toy_envs:ScriptedEnv"
    if line.startswith("tune"):  # running its trials takes a process of its own
        assert tune._study(tune.build_parser().parse_args([*line.split()[1:], *option[1].split()])).search.name == "s"
    else:
        assert command(f"{line} {option[1]}") == 0


@pytest.mark.parametrize("line", [line for line in LATER if not line.startswith("tune")])
def test_another_env_than_the_files_is_said_to_be_another(
    begun: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    monkeypatch.chdir(begun)
    assert command(f"{line} --env toy_envs:NoisyEnv") == 2
    assert re.search(r"toy_envs:ScriptedEnv.*not.*toy_envs:NoisyEnv|no settings for env", capsys.readouterr().err)
