"""Starting without garbage collections."""

from __future__ import annotations

import gc

import pytest

from marl_sb3 import startup


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is called of `gc.freeze`, which the tests of other modules are spared."""
    called: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: called.append("freeze"))
    monkeypatch.setattr(gc, "get_freeze_count", lambda: len(called))
    return called


def test_collections_pause_inside_and_what_is_there_is_frozen_once(frozen: list[str]) -> None:
    for _ in range(2):
        with startup.without_collections():
            assert gc.isenabled() == bool(frozen)
        assert gc.isenabled()
    assert frozen == ["freeze"]


def test_collections_go_on_after_an_error(frozen: list[str]) -> None:
    with pytest.raises(KeyError), startup.without_collections():
        raise KeyError
    assert gc.isenabled()
    assert frozen == []


def test_who_has_disabled_collections_keeps_them_disabled(frozen: list[str]) -> None:
    gc.disable()
    try:
        with startup.without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert frozen == []
