"""Starting without garbage collections."""

from __future__ import annotations

import gc
import runpy
from collections.abc import Callable
from contextlib import AbstractContextManager

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
