"""Compiled kernels are loaded from their files, and compiled again where the files are damaged."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.dispatcher import Dispatcher

from marl_sb3.learners.fused import adam, layers
from marl_sb3.learners.fused.kernel_cache import RebuildingCache, compiled
from marl_sb3.learners.ppo.fused import kernel


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


INNER = """
from marl_sb3.learners.fused.kernel_cache import inner_kernel

@inner_kernel
def inner(number):
    return number + {added}
"""
OUTER = """
from changing_inner import inner
from marl_sb3.learners.fused.kernel_cache import kernel

@kernel
def outer(number):
    return 2 * inner(number)
"""


def test_a_change_of_a_kernel_in_another_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changing_outer.py").write_text(OUTER)
    results = []
    for added in (1, 1, 10):
        (tmp_path / "changing_inner.py").write_text(INNER.format(added=added))
        for module in ("changing_inner", "changing_outer"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        outer = importlib.import_module("changing_outer").outer
        results.append((outer(1), sum(outer.stats.cache_hits.values())))
    assert results == [(4, 0), (4, 1), (22, 0)]


def test_all_kernels_have_this_cache() -> None:
    modules = (adam, kernel, layers)
    kernels = [value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)]
    assert len(kernels) > 10
    assert all(type(kernel._cache) is RebuildingCache for kernel in kernels)
