"""A fingerprint is another one whenever a function may compile to other machine code."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

from marl_sb3.fingerprints import UnknownValueError, fingerprint

SOURCE = """
import enum
import math
import numpy as np
from numba import njit
from typing import NamedTuple
import constants_of_rules
import constants_of_rules as renamed
from constants_of_rules import SIZES, halved

class Phase(enum.IntEnum):
    ENDED = 2

class Rule(NamedTuple):
    price: float

def around(limit):
    def inner(x):
        return x + limit
    return inner

TABLE = np.array([1.0, 2.0])
SET = frozenset({"b", "a", "c"})
RULE = Rule(1.5)
inside = around(3)

@njit(fastmath=False)
def compiled(x, power=2):
    return x ** power

def second(x):
    return third(x) if x else math.pi

def third(x):
    return second(x - 1) + constants_of_rules.SPEED

def step(x):
    picked = [y for y in SIZES if y > TABLE[0]]
    return compiled(x) + second(x) + halved(x) + inside(x) + RULE.price + Phase.ENDED + len(picked) + ("a" in SET)

OTHER = 1

def other(x):
    return x.SPEED
"""
CONSTANTS = """
SPEED = 1
SIZES = (4, 5)
FACTOR = 0.5
UNUSED = 1

def halved(x):
    return FACTOR * x
"""

CHANGES = {
    "a constant of another module": ("SPEED = 1", "SPEED = 2"),
    "a tuple of another module": ("(4, 5)", "(4, 6)"),
    "what a function of another module uses": ("FACTOR = 0.5", "FACTOR = 0.25"),
    "the type of a constant": ("SPEED = 1", "SPEED = 1.0"),
    "code of another module": ("return FACTOR * x", "return FACTOR + x"),
    "an array": ("np.array([1.0, 2.0])", "np.array([1.0, 3.0])"),
    "a type of an array": ("np.array([1.0, 2.0])", "np.array([1.0, 2.0], np.float32)"),
    "a set": ('"a", "c"', '"a", "d"'),
    "a closure": ("around(3)", "around(4)"),
    "a default": ("power=2", "power=3"),
    "an option of numba": ("fastmath=False", "fastmath=True"),
    "a function that is called by one that is called": ("return second(x - 1)", "return second(x - 2)"),
    "a field": ("Rule(1.5)", "Rule(1.25)"),
    "a member of an enumeration": ("ENDED = 2", "ENDED = 3"),
    "a comprehension": ("if y > TABLE[0]", "if y < TABLE[0]"),
}
SAME = {
    "what it does not use": ("UNUSED = 1", "UNUSED = 2"),
    "a global that has no part in it": ("OTHER = 1", "OTHER = 2"),
    "its place in the file": ("import enum\n", "import enum\n\n# a remark\n\n"),
}


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Any]:
    """Return a module of these sources, as a process finds it after an edit."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def edited(before: str = "", after: str = "") -> Any:
        assert before in SOURCE + CONSTANTS
        for name, source in (("rules_with_constants", SOURCE), ("constants_of_rules", CONSTANTS)):
            monkeypatch.delitem(sys.modules, name, raising=False)
            (tmp_path / f"{name}.py").write_text(source.replace(before, after) if before else source)
        importlib.invalidate_caches()
        return importlib.import_module("rules_with_constants")

    return edited


@pytest.mark.parametrize("edit", CHANGES.values(), ids=CHANGES)
def test_an_edit_of_what_a_function_uses_changes_its_fingerprint(
    edit: tuple[str, str], imported: Callable[..., Any]
) -> None:
    before = fingerprint(imported().step)
    assert fingerprint(imported(*edit).step) != before
    assert fingerprint(imported().step) == before


@pytest.mark.parametrize("edit", SAME.values(), ids=SAME)
def test_an_edit_of_something_else_does_not(edit: tuple[str, str], imported: Callable[..., Any]) -> None:
    assert fingerprint(imported(*edit).step) == fingerprint(imported().step)


def test_it_is_the_same_in_all_processes(imported: Callable[..., Any], tmp_path: Path) -> None:
    own = fingerprint(imported().step)
    code = "import rules_with_constants as r; from marl_sb3.fingerprints import fingerprint; print(fingerprint(r.step))"
    for seed in ("1", "2"):  # of hashes: the order of sets
        variables = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        printed = subprocess.run(
            [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
        )
        assert printed.stdout.strip() == own


def test_a_value_that_cannot_be_told_from_others_is_refused(imported: Callable[..., Any]) -> None:
    module = imported()
    module.RULE = object()
    with pytest.raises(UnknownValueError, match="is a object"):
        fingerprint(module.step)


def test_a_module_that_is_only_named_like_one_of_python_is_not_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = []
    for number in (1, 2):
        (tmp_path / "tabnanny.py").write_text(f"SPEED = {number}\ndef step(x):\n    return x + SPEED\n")
        importlib.invalidate_caches()
        found.append(fingerprint(importlib.import_module("tabnanny").step))
        del sys.modules["tabnanny"]
    assert found[0] != found[1]


def named(x: float) -> float:
    return x


def calls_named(x: float) -> float:
    return named(x)


def test_a_function_that_numba_implements_by_other_code_is_refused() -> None:
    numba.extending.overload(named)(lambda x: lambda x: 2 * x)
    with pytest.raises(UnknownValueError, match="named"):
        fingerprint(calls_named)


def test_a_variable_without_a_value_is_refused() -> None:
    def uses_later() -> int:
        return later  # type: ignore[has-type]

    with pytest.raises(UnknownValueError, match="no value yet"):
        fingerprint(uses_later)
    later = 1
    assert fingerprint(uses_later)
    assert uses_later() == later
