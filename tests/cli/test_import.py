"""`--import MODULE`: networks and envs that a module of the user's registers, in every command and its processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Commands, ForkServer

MODULE = """\
import marl_sb3
from stable_baselines3.common.torch_layers import FlattenExtractor
from marl_sb3.envs.arena import ArenaEnv


class Features(FlattenExtractor):
    pass


marl_sb3.register_network("mine", Features)
marl_sb3.register_env("my_env", lambda: ArenaEnv(max_timesteps=5))
"""
SETTINGS = "--set n_steps=6 --set batch_size=6 --set n_envs=2 --set policy_kwargs.features_extractor_class=mine"
TRAIN = f"train my_env {SETTINGS} --timesteps 12 --seed 1 --run-dir run"


@pytest.fixture(scope="module")
def run(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    folder = tmp_path_factory.mktemp("imports")
    (folder / "my_parts.py").write_text(MODULE)
    commands = Commands(server, folder)
    code, said = commands(f"{TRAIN} --import my_parts")
    assert code == 0, said
    assert "python -m marl_sb3.evaluate run --import my_parts" in said
    return commands


@pytest.mark.parametrize(
    "line",
    [
        "evaluate run --episodes 2",
        "export run",
        "train --resume run --timesteps 12",
        pytest.param("doctor my_env --steps 5", marks=pytest.mark.proof),  # it measures the env's speed, too
        "tune my_env --set n_steps=6 --set n_envs=2 --set batch_size=6 --timesteps 12 --trials 1 --seed 1 --workers 1 "
        "--set policy_kwargs.features_extractor_class=mine --grid gamma=0.9 --evaluations 1 --evaluation-episodes 1",
    ],
)
def test_commands_need_the_module_and_say_so(run: Commands, line: str) -> None:
    code, said = run(line)
    assert code == 2
    assert "--import MODULE" in said
    code, said = run(f"{line} --import my_parts")
    assert code == 0, said


def test_a_module_that_cannot_be_imported_is_named(run: Commands) -> None:
    (run.folder / "broken.py").write_text("1 / 0")
    for name, words in {
        "nothing": "error: --import 'nothing': cannot import 'nothing': No module named 'nothing'",
        "my_parts.py": "error: --import 'my_parts.py': cannot import 'my_parts.py'",
        "a/b": "error: --import 'a/b': 'a/b' names no module; accepted: a module, such as my_module",
    }.items():
        code, said = run(f"evaluate run --import {name}")
        assert (code, said.startswith(words)) == (2, True), said
    code, said = run("export run --import broken")
    assert (code, "importing 'broken' raised ZeroDivisionError" in said) == (1, True)


SCRIPT = """\
import marl_sb3
from toy_envs import ScriptedEnv


class Mine(ScriptedEnv):
    pass


if __name__ == "__main__":
    settings = {"n_steps": 6, "batch_size": 6}
    marl_sb3.train(Mine, timesteps=12, n_envs=2, seed=1, settings=settings, run_dir="of_script")
    marl_sb3.load_run("of_script", env=Mine).close()
"""


def test_a_class_of_the_script_is_found_by_the_name_of_the_script(server: ForkServer, tmp_path: Path) -> None:
    (tmp_path / "my_train.py").write_text(SCRIPT)
    process = server.run(["my_train.py"], tmp_path / "output.txt", folder=tmp_path)
    assert process.wait() == 0, (tmp_path / "output.txt").read_text()
    assert (tmp_path / "of_script" / "config.yaml").read_text().startswith("my_train:Mine:")
    commands = Commands(server, tmp_path)
    for line in ("evaluate of_script --episodes 2", "train --resume of_script --timesteps 12"):
        code, said = commands(line)
        assert (code, "add --env my_train:Mine to the command" in said) == (2, True)  # a file alone imports nothing
        code, said = commands(f"{line} --env my_train:Mine")
        assert (code, "it is used with" in said) == (0, False), said
        code, said = commands(f"{line} --env toy_envs:ScriptedEnv")
        assert code == 0, said
        if line.startswith("evaluate"):
            assert "of env 'my_train:Mine'; it is used with toy_envs:ScriptedEnv" in said
