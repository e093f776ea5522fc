"""The help of each command fits a terminal, names every default, and is shown without PyTorch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

# Command -> how many options its help lists, --help and --version left out.
OPTIONS = {
    "train": 40,
    "evaluate": 20,
    "watch": 14,
    "report": 5,
    "export": 16,
    "imitate": 22,
    "serve": 19,
    "plot": 9,
    "compare": 6,
    "match": 15,
    "doctor": 9,
    "tune": 36,
    "benchmark": 9,
    "new": 3,
    "completions": 1,
}

PROGRAM = """
import contextlib, importlib, io, json, sys
shown = {}
for name in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        importlib.import_module(f"marl_sb3.{name}").main(["--help"])
    shown[name] = output.getvalue(), sorted({"torch", "yaml", "optuna", "stable_baselines3"} & {*sys.modules})
print(json.dumps(shown))
"""


@dataclass
class Help:
    """What a command shows, and which heavy modules were imported by then."""

    text: str
    imported: list[str]


@pytest.fixture(scope="module")
def shown() -> dict[str, Help]:
    """The help of all commands, from one process on a terminal of 80 columns."""
    return help_of(*OPTIONS)


def help_of(*arguments: str) -> dict[str, Help]:
    """The help of commands; of Python's own options before them."""
    python = [each for each in arguments if each.startswith("-")]
    done = subprocess.run(
        [sys.executable, *python, "-c", PROGRAM, *(each for each in arguments if each not in python)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    return {name: Help(*found) for name, found in json.loads(done.stdout).items()}


def test_help_is_the_same_where_python_drops_docstrings(shown: dict[str, Help]) -> None:
    for name, found in help_of("-OO", "train", "tune").items():
        assert found.text == shown[name].text


def entries(text: str) -> list[str]:
    """The options that the sections of a help text list, with what is said of each."""
    sections = re.findall(r"^[\w ]+:\n(  -.*?)(?:\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    found = [entry for section in sections for entry in re.split(r"\n  (?=-)", section)]
    return [entry for entry in found if not entry.endswith("exit")]


@pytest.mark.parametrize("name", OPTIONS)
def test_help_fits_a_terminal_names_every_default_and_imports_nothing_heavy(name: str, shown: dict[str, Help]) -> None:
    assert max(map(len, shown[name].text.splitlines())) <= 80
    assert len(entries(shown[name].text)) == OPTIONS[name]
    assert [entry for entry in entries(shown[name].text) if "default" not in entry] == []
    assert shown[name].imported == []
