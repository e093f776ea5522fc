"""Starting without garbage collections."""

from __future__ import annotations

import gc
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from marl_sb3 import startup

Start = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is called of `gc.freeze`, which the tests of other modules are spared."""
    called: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: called.append("freeze"))
    return called


@pytest.fixture
def without_collections() -> Start:
    """As in a process in which nothing has started yet."""
    function: Start = runpy.run_path(startup.__file__)["without_collections"]
    return function


def test_collections_pause_inside_and_what_is_there_is_frozen_once(
    frozen: list[str], without_collections: Start
) -> None:
    for _ in range(2):
        with without_collections():
            assert gc.isenabled() == bool(frozen)
        assert gc.isenabled()
    assert frozen == ["freeze"]


def test_collections_go_on_after_an_error(frozen: list[str], without_collections: Start) -> None:
    with pytest.raises(KeyError), without_collections():
        raise KeyError
    assert gc.isenabled()
    assert frozen == []


def test_who_has_disabled_collections_keeps_them_disabled(frozen: list[str], without_collections: Start) -> None:
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert frozen == []


def test_a_command_in_a_deleted_working_directory_ends_in_one_line(tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    start = f"import os, sys, runpy; os.rmdir({str(gone)!r}); sys.argv[0] = '-m'; runpy.run_module('marl_sb3.train')"
    done = subprocess.run([sys.executable, "-c", start], cwd=gone, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    words = "error: the working directory is not there any more: No such file or directory; accepted: another\n"
    assert done.stderr == words
