"""Short runs of the fuzzing commands, and the proof that its watcher would notice."""

from __future__ import annotations

import io
import os
import pickle
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from audit import watched
from forked import ForkServer

FUZZ = Path(__file__).parent / "fuzz.py"


@pytest.mark.parametrize("mutants", [24, pytest.param(2000, marks=pytest.mark.proof)])
def test_mutated_checkpoints_do_no_harm(mutants: int, server: ForkServer, tmp_path: Path) -> None:
    options = ["--mutants", str(mutants), "--seed", "1", "--workers", "1"]
    fuzzing = server.run([str(FUZZ), *options], tmp_path / "output")
    code, output = fuzzing.wait(None), (tmp_path / "output").read_text()
    assert code == 0, output[-3000:]
    assert "0 findings" in output


def test_readers_survive_bytes_that_chance_has_changed(server: ForkServer, tmp_path: Path) -> None:
    """A short run without the guidance by coverage that continuous integration has."""
    reading = server.run([str(FUZZ.with_name("guided.py")), "--blind", "--inputs", "600"], tmp_path / "output")
    assert reading.wait(None) == 0, (tmp_path / "output").read_text()[-3000:]


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
