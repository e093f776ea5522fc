"""What the commands have in common."""

from __future__ import annotations

import argparse
import importlib

import pytest

import marl_sb3
from marl_sb3.cli import assignments, integer, run_command
from marl_sb3.core.config.algorithms import canonical_algorithm
from marl_sb3.core.config.values import counted
from marl_sb3.errors import ConfigError
from marl_sb3.train import main


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("-5", -5), ("100000", 100_000), ("100_000", 100_000), ("1e5", 100_000), ("1E+5", 100_000),
        ("2.5e3", 2500), ("100k", 100_000), ("0.5M", 500_000), ("1_000k", 1_000_000),
        ("123456789012345678901234567890123", 123456789012345678901234567890123),
    ],
)  # fmt: skip
def test_an_integer_may_be_written_as_people_do(text: str, value: int) -> None:
    assert integer(text) == value
    assert isinstance(integer(text), int)


@pytest.mark.parametrize("text", ["", "two", "1.5", "1e-5", "0.0001k", "1__0", "_1", "1_", "1,000", "nan", "9" * 5000])
def test_what_is_no_integer_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"received '.{0,60}'; accepted: an integer, such as 100000"):
        integer(text)


def test_counts_agree_with_their_nouns() -> None:
    assert [counted(n, "env") for n in (0, 1, 2, 1000)] == ["0 envs", "1 env", "2 envs", "1,000 envs"]


def test_assignments_are_read_as_yaml() -> None:
    assert assignments("--set", ["gamma=0.9", "policy_kwargs.net_arch=[32, 32]"]) == {
        "gamma": 0.9,
        "policy_kwargs.net_arch": [32, 32],
    }
    with pytest.raises(ConfigError, match="--set is 'gamma'; accepted: KEY=VALUE"):
        assignments("--set", ["gamma"])


@pytest.mark.parametrize(
    ("line", "hint"),
    [("--timestep 5", "--timestep 5; did you mean --timesteps?"), ("--n_envs=3", "--n_envs=3; did you mean --n-envs?"),
     ("--nothing-like-it", "--nothing-like-it; did you mean --set KEY=VALUE?"), ("more", "more"),
     ("--run DQN", "--run DQN; did you mean --algo ALGO?"), ("--env-id=x", "--env-id=x; did you mean --env ENV?"),
     ("--out x", "--out x; did you mean --set KEY=VALUE?"),
     ("--lr 1e-4", "--lr 1e-4; did you mean --set KEY=VALUE?"), ("lr=1e-4", "lr=1e-4; did you mean --set lr=1e-4?"),
     ("--set lr 1e-4", "1e-4; did you mean --set lr=1e-4?"), ("--set lr=1e-4 more", "more")],
)  # fmt: skip
def test_an_option_that_is_not_known_says_which_may_have_been_meant(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main.parser().parse_args(["arena", *line.split()])
    assert left.value.code == 2
    message = f"error: unrecognized arguments: {hint} (see python -m marl_sb3.train --help)\n"
    assert capsys.readouterr().err == message


def test_names_of_algorithms_are_those_of_the_papers_too() -> None:
    names = {"PPO": "ppo", "TRPO": "trpo", "MaskablePPO": "maskable_ppo", "ppo_lstm": "recurrent_ppo", "poo": "poo"}
    assert {name: canonical_algorithm(name) for name in names} == names


@pytest.mark.parametrize("command", ["train", "tune", "evaluate", "export", "doctor"])
def test_every_command_tells_its_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"marl_sb3.{command}").main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"marl_sb3 {marl_sb3.__version__}\n"


def test_messages_hold_nothing_that_a_terminal_takes_for_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> int:
        raise ConfigError("mine.yml, arena.\x1b[31m: ä is unknown\nin two lines")

    assert run_command(fails, 0) == 2
    assert capsys.readouterr().err == "error: mine.yml, arena.\\x1b[31m: ä is unknown\nin two lines\n"
