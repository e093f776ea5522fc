"""Compiled kernels are loaded from their files, and compiled again where the files are damaged."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.dispatcher import Dispatcher

from marl_sb3.learners.ppo.fused import kernel
from marl_sb3.learners.ppo.fused.kernel_cache import RebuildingCache, compiled


def one_more(number: int) -> int:
    return number + 1


def called() -> Any:
    """Compiled or loaded, as in a new process; how often it was loaded."""
    function: Any = compiled(one_more)
    assert function(1) == 2
    return sum(function.stats.cache_hits.values())


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace(path: Path) -> None:
    path.write_bytes(b"something else")


@pytest.mark.parametrize("damage", [truncate, empty, replace])
@pytest.mark.parametrize("kind", ["nbi", "nbc"])
def test_damaged_files_are_compiled_again(
    kind: str, damage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert (called(), called()) == (0, 1)
    (file,) = tmp_path.rglob(f"*.{kind}")
    damage(file)
    with caplog.at_level(logging.WARNING):
        assert (called(), called()) == (0, 1)
    (warning,) = caplog.messages
    assert "one_more" in warning
    assert f"its files in {file.parent} are damaged" in warning


def test_a_damaged_cache_that_cannot_be_written_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(self: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    called()
    for file in tmp_path.rglob("*.nbi"):
        truncate(file)
    monkeypatch.setattr(RebuildingCache, "flush", refused)
    assert (called(), called()) == (0, 0)
    assert len(caplog.messages) == 2


def test_all_kernels_have_this_cache() -> None:
    kernels = [value for value in vars(kernel).values() if isinstance(value, Dispatcher)]
    assert len(kernels) > 10
    assert all(type(kernel._cache) is RebuildingCache for kernel in kernels)
