"""What the README says is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_layers import LAYERS

import marl_sb3.train
import marl_sb3.tune
from marl_sb3.config import load_config
from marl_sb3.experiment import prepare
from marl_sb3.tuning.space import parse_space

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    commands = [line for block in blocks("bash") for line in block.splitlines()]
    (test_command,) = [line for line in commands if "pytest" in line]
    assert test_command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_library_example_runs(in_tmp: Path) -> None:
    (example,) = [block for block in blocks("python") if "MultiAgentAlgorithm(" in block]
    short = example.replace("total_timesteps=20_000", "total_timesteps=2_000").replace("n_envs=20", "n_envs=2")
    done = subprocess.run([sys.executable, "-c", short], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "agent1" in done.stdout
    assert (in_tmp / "pol1.zip").is_file()


def test_settings_example_is_a_configuration_that_builds(in_tmp: Path) -> None:
    (example,) = [block for block in blocks("yaml") if "n_envs" in block]
    (in_tmp / "mine.yml").write_text(example)
    run = prepare(load_config("arena", hparams="mine.yml"))
    assert run.algorithm.policy_of == {"agent1": "explorer", "agent2": "hunter"}
    assert yaml.safe_load(example)["arena"]["n_envs"] == run.config.n_envs


@pytest.mark.parametrize(("command", "at_least"), [(marl_sb3.train, 6), (marl_sb3.tune, 2)])
def test_every_command_line_of_the_readme_parses(command: Any, at_least: int) -> None:
    lines = re.findall(rf"python -m {re.escape(command.__name__)} ([^\n#`;]*)", README.replace("\\\n", ""))
    assert len(lines) >= at_least
    for line in lines:
        arguments = line.replace("$s", "1").split()
        if "--help" not in arguments:
            command.build_parser().parse_args(arguments)


def test_space_of_the_readme_is_one() -> None:
    (block,) = [block for block in blocks("yaml") if "log_uniform" in block]
    space = parse_space(yaml.safe_load(block)["arena"], "README")
    assert [parameter.name for parameter in space.parameters][-1] == "policy_kwargs.net_arch"
    assert space.constants == {"ent_coef": 0.01}


def test_search_example_runs(in_tmp: Path) -> None:
    (example,) = [block for block in blocks("python") if "marl_sb3.tune(" in block]
    short = example.replace("trials=20, timesteps=60_000, workers=2", "trials=1, timesteps=20_000")
    done = subprocess.run(
        [sys.executable, "-c", f"import marl_sb3\n{short}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d+ runs/tune/arena/.*/trials/00000/checkpoints$", done.stdout)


def test_every_metric_is_in_the_reference(in_tmp: Path) -> None:
    run = prepare(load_config("arena", n_envs=2, settings={"n_steps": 100}))
    table = README.partition("### Metrics")[2].partition("## Speed")[0]
    for name in run.algorithm.metric_names():
        parts = [part for part in name.split("/") if part not in ("agent1", "agent2", "shared")]
        leaf = re.sub(r"_(mean|min|max)$", "", parts[-1]) if "custom_metrics" in name else parts[-1]
        stem = re.sub(r"_(mean|min|max)$", "", leaf)
        assert leaf in table or f"{stem}_{{mean,min,max}}" in table, name


@pytest.mark.parametrize("names", LAYERS[1:], ids=lambda names: names[0])
def test_the_picture_has_every_layer(names: tuple[str, ...]) -> None:
    picture = README.partition("## How it is built")[2].partition("Imports go downwards")[0]
    assert all(re.search(rf"\b{name}\b", picture) for name in names if name != "cli")
