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
pytestmark = pytest.mark.skipif(not CAN_FORK, reason="this system cannot fork processes")


def printed(folder: Path, *arguments: str) -> list[str]:
    """What `of_sizes` prints in a process of its own with this folder of compiled code."""
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    line = [sys.executable, of_sizes.__file__, *arguments]
    return subprocess.run(line, env=variables, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """What processes print that know one size only, with no compiled code of others."""
    return cache(lambda kind: printed(tmp_path_factory.mktemp("one"), kind, "fork", "apart", *SIZES))


SHORT = [("rules", "forked"), ("rules", "counting alike")]
LONG = [(kind, how) for kind in of_sizes.KINDS for how in ("forked", "separate", "counting alike")]


@pytest.mark.parametrize(("kind", "how"), [*SHORT, *(pytest.param(*each, marks=pytest.mark.proof) for each in LONG)])
def test_sizes_that_processes_compiled_do_in_one_process_what_they_do_alone(
    kind: str, how: str, tmp_path: Path, alone: Callable[[str], list[str]]
) -> None:
    sizes = SIZES[::-1] if (kind, how) in LONG and (kind, how) not in SHORT else SIZES
    expected = dict(zip(SIZES, alone(kind), strict=True))
    if how == "separate":
        assert [line for size in SIZES for line in printed(tmp_path, kind, size)] == alone(kind)
        *filled, shared, one, other = [*alone(kind), *printed(tmp_path, kind, "here", *sizes)]
    else:
        words = ["fork", *["counting"] * (how == "counting alike")]
        *filled, shared, one, other = printed(tmp_path, kind, *words, *SIZES, "here", *sizes)
    assert filled == alone(kind)
    assert (shared == "[]") == (how != "counting alike")  # what this process would mistake there is compiled anew
    assert [one, other] == [expected[size] for size in sizes]
    assert not shared_symbols(tmp_path)


def test_sizes_differ(alone: Callable[[str], list[str]]) -> None:
    assert len({line.split()[1] for line in alone("rules")}) == 2
