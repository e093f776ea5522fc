"""Compiled code of several sizes is never taken for one another, whoever compiled it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import of_sizes
import pytest
from compiling_once import shared_symbols

from marl_sb3.systems import CAN_FORK

SIZES = "2", "4"


def printed(folder: Path, *arguments: str) -> list[str]:
    """What `of_sizes` prints in a process of its own with this folder of compiled code."""
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, of_sizes.__file__, *arguments]
    return subprocess.run(line, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()


def fill(folder: Path, kind: str, how: str) -> list[str]:
    """Compile each size in a process of its own."""
    if how == "forked":
        return printed(folder, kind, "fork", *SIZES)
    words = ["counting"] if how == "counting alike" else []
    return [line for size in SIZES for line in printed(folder, kind, *words, size)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """What a process prints that knows one size only, with no compiled code of others."""
    return cache(lambda kind: [line for size in SIZES for line in printed(tmp_path_factory.mktemp("one"), kind, size)])


SHORT = [("rules", "forked"), ("rules", "counting alike")]
LONG = [(kind, how) for kind in of_sizes.KINDS for how in ("forked", "separate", "counting alike")]


@pytest.mark.parametrize(("kind", "how"), [*SHORT, *(pytest.param(*each, marks=pytest.mark.proof) for each in LONG)])
def test_sizes_that_processes_compiled_do_in_one_process_what_they_do_alone(
    kind: str, how: str, tmp_path: Path, alone: Callable[[str], list[str]]
) -> None:
    if how == "forked" and not CAN_FORK:
        pytest.skip("this system cannot fork processes")
    assert fill(tmp_path, kind, how) == alone(kind)
    if how != "counting alike":  # there, what this process would mistake is compiled anew
        assert not shared_symbols(tmp_path)
    assert printed(tmp_path, kind, *SIZES) == alone(kind)
    assert not shared_symbols(tmp_path)
    if (kind, how) in LONG:
        assert printed(tmp_path, kind, *reversed(SIZES)) == alone(kind)[::-1]


def test_sizes_differ(alone: Callable[[str], list[str]]) -> None:
    assert len({line.split()[1] for line in alone("rules")}) == 2
