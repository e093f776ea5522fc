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


@pytest.fixture(scope="module")
def found(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return read_all(server, tmp_path_factory.mktemp("data_sets"))


@pytest.mark.parametrize("name", CASES)
def test_a_dataset_of_a_stranger_is_read_or_refused_in_words(name: str, found: Found) -> None:
    case = CASES[name]
    assert found[name].keys() == FUNCTIONS.keys()
    for way, (result, words) in found[name].items():
        assert result != "wrong", f"{way}: {words}"
        if case.words is None:
            assert result == "read", f"{way}: {words}"
        elif way in REFUSING[case.by]:
            assert result == "refused", way
            assert re.search(case.words, words), f"{way}: {words}"
        assert words.count("\n") <= 2, words
        assert len(words) < 2000, words


@pytest.mark.proof
def test_commands_refuse_them_with_exit_code_2(server: ForkServer, tmp_path: Path) -> None:
    for name, ways in read_all(server, tmp_path, "--commands").items():
        refused = CASES[name].words is not None
        assert {way: result for way, (result, _) in ways.items()} == dict.fromkeys(
            ways, "refused" if refused else "read"
        ), f"{name}: {ways}"
