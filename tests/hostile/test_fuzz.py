"""A short run of the fuzzing command, and the proof that its watcher would notice."""

from __future__ import annotations

import io
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from audit import watched

FUZZ = Path(__file__).parent / "fuzz.py"


def test_mutated_checkpoints_do_no_harm() -> None:
    """One and a half hundred of them; the command does as many thousands as it is told to."""
    command = [sys.executable, str(FUZZ), "--mutants", "150", "--seed", "1", "--workers", "1", "--patient"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "0 findings" in done.stdout


def _unpickle() -> None:
    pickle.load(io.BytesIO(pickle.dumps(Path)))


def _write() -> None:
    (Path.cwd() / "mine").write_text("x")


HARM: dict[str, Callable[[], object]] = {
    "unpickling": _unpickle,
    "exec": lambda: exec("1"),
    "a process": lambda: subprocess.run(["true"], check=True),
    "a shell": lambda: os.system("true"),
    "a socket": lambda: socket.socket().close(),
    "writing": _write,
    "removing": lambda: os.unlink("victim"),
}


@pytest.mark.parametrize("harm", HARM)
def test_harm_would_be_noticed(harm: str, in_tmp: Path) -> None:
    (in_tmp / "victim").write_text("x")
    with watched() as seen:
        HARM[harm]()
    assert seen, harm


def test_reading_is_no_harm(in_tmp: Path) -> None:
    (in_tmp / "file").write_text("x")
    with watched() as seen:
        assert (in_tmp / "file").read_text() == "x"
    assert seen == []
