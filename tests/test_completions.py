"""`marl-sb3 completions`: scripts that shells accept, and what bash completes with them."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path

import pytest
from documentation import ROOT
from refusals import refusal

from marl_sb3 import startup
from marl_sb3.commands.completions import main
from marl_sb3.runs.schema import TrainConfig

CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
PROGRAM = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
$(complete -p marl-sb3 | sed -E 's/.*-F (\\w+) .*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script for each shell."""
    pytest.importorskip("shtab")
    folder = tmp_path_factory.mktemp("scripts")
    for shell in CHECKS:
        with redirect_stdout(io.StringIO()) as output:
            assert main([shell]) == 0
        (folder / shell).write_text(output.getvalue())
    return folder


@pytest.mark.parametrize("shell", CHECKS)
def test_each_shell_can_read_its_script(scripts: Path, shell: str) -> None:
    text = (scripts / shell).read_text()
    assert all(word in text for word in ("benchmark", "maskable_ppo", "sisl/pursuit-v5", "checkpoints.every="))
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([*CHECKS[shell], scripts / shell], check=True)


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("tr", "train"),
        ("train --run-", "--run-dir"),
        ("train --policies p", "per_agent"),
        ("train aren", "arena"),
        ("train --seed 1 aren", "arena"),
        ("train arena --algo recurrent_s", "recurrent_sac"),
        ("train arena --set learning_r", "learning_rate="),
        ("tune --set gamma=0.9 --set checkpoints.ev", "checkpoints.every="),
        ("train --hparams my", "my.yml"),
        ("evaluate run", "runs"),
        ("completions b", "bash"),
    ],
)
def test_bash_completes(scripts: Path, in_tmp: Path, line: str, completed: str) -> None:
    Path("runs").mkdir()
    Path("my.yml").touch()
    words = ["bash", "-c", PROGRAM, "bash", scripts / "bash", "marl-sb3", *line.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == ([completed], "")


def test_what_is_completed_and_listed_after_set_is_a_setting(scripts: Path) -> None:
    listed = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs" / "reference" / "settings.md").read_text(), re.MULTILINE)
    completed = re.findall(r"([\w.]+)=(?= |')", (scripts / "bash").read_text())
    named = {*listed, *completed}
    assert {"league.sampling", "learning_rate"} <= {*completed}
    assert named & {each.name for each in fields(TrainConfig) if not each.compare} == set()  # not of the configuration


def test_without_the_extra_the_message_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(startup, "find_spec", lambda name: None)
    assert "completions needs shtab, which is not installed; " in refusal(main, ["bash"], capsys)
