"""Datasets of strangers: what they hold is read or refused in words; nothing hangs, leads outside or fills memory."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from data_sets import CASES, FUNCTIONS, REFUSING
from forked import ForkServer

SCRIPT = str(Path(__file__).with_name("data_sets.py"))
Found = dict[str, dict[str, tuple[str, str]]]  # case -> way -> what came of it, and the message


def read_all(server: ForkServer, folder: Path, *options: str) -> Found:
    process = server.run([SCRIPT, str(folder / "found"), *options], folder / "output")
    assert process.wait(None) == 0, (folder / "output").read_text()[-3000:]
    found: Found = defaultdict(dict)
    for line in map(json.loads, (folder / "found").read_text().splitlines()):
        found[line["case"]][line["way"]] = line["result"], line["words"]
    return found


def mistakes(name: str, ways: dict[str, tuple[str, str]]) -> list[str]:
    """What must not come of a case, in any way to read it."""
    case, found = CASES[name], []
    for way, (result, words) in ways.items():
        expected = "read" if case.words is None else "refused" if way in REFUSING[case.by] else "read or refused"
        is_named = expected != "refused" or re.search(str(case.words), words)
        if result not in expected.split(" or ") or not is_named or words.count("\n") > 2 or len(words) >= 2000:
            found.append(f"{name}, {way}: {result}, not {expected}: {words}")
    return found if ways.keys() == FUNCTIONS.keys() else [*found, f"{name}: only read by {[*ways]}"]


def test_datasets_of_strangers_are_read_or_refused_in_words(server: ForkServer, tmp_path: Path) -> None:
    """One test, since one process reads them all: it takes longer than the comparisons."""
    found = read_all(server, tmp_path)
    assert found.keys() == CASES.keys()
    assert [each for name, ways in found.items() for each in mistakes(name, ways)] == []


@pytest.mark.proof
def test_commands_refuse_them_with_exit_code_2(server: ForkServer, tmp_path: Path) -> None:
    for name, ways in read_all(server, tmp_path, "--commands").items():
        refused = CASES[name].words is not None
        assert {way: result for way, (result, _) in ways.items()} == dict.fromkeys(
            ways, "refused" if refused else "read"
        ), f"{name}: {ways}"
