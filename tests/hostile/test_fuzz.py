"""Files of strangers are read or refused in words: mutants by chance; replay buffers and data sets by their meaning."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import socket
import subprocess
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit import watched
from bases import BASES
from checkpoint_source import DTYPES, Files, Source, pack, read_files, tensors_of, unpack, write_files
from data_sets import CASES, FUNCTIONS, REFUSING
from forked import ForkServer

from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint

HERE = Path(__file__).parent


def run(server: ForkServer, folder: Path, script: str, *options: str) -> str:
    """What a script says that finds nothing wrong."""
    code, output = server.run([str(HERE / script), *options], folder / "output").wait(None), folder / "output"
    assert code == 0, output.read_text()[-3000:]
    return output.read_text()


@pytest.mark.parametrize("mutants", [24, pytest.param(2000, marks=pytest.mark.proof)])
def test_mutated_checkpoints_do_no_harm(mutants: int, server: ForkServer, tmp_path: Path) -> None:
    options = ["--mutants", str(mutants), "--seed", "1", "--workers", "1"]
    assert "0 findings" in run(server, tmp_path, "fuzz.py", *options)


def test_readers_survive_bytes_that_chance_has_changed(server: ForkServer, tmp_path: Path) -> None:
    """A short run without the guidance by coverage that continuous integration has."""
    run(server, tmp_path, "guided.py", "--blind", "--inputs", "600")


# --- The proof that harm would be noticed ----------------------------------------------------------------------------


def _unpickle() -> None:
    pickle.load(io.BytesIO(pickle.dumps(Path)))


HARM: dict[str, Callable[[], object]] = {
    "unpickling": _unpickle,
    "exec": lambda: exec("1"),
    "a process": lambda: subprocess.run(["true"], check=True),
    "a shell": lambda: os.system("true"),
    "a socket": lambda: socket.socket().close(),
    "writing": lambda: Path("mine").write_text("x"),
    "removing": lambda: os.unlink("victim"),
}


@pytest.mark.parametrize("harm", HARM)
def test_harm_would_be_noticed(harm: str, in_tmp: Path) -> None:
    (in_tmp / "victim").write_text("x")
    with watched() as seen:
        HARM[harm]()
    assert seen, harm


def test_reading_is_no_harm(in_tmp: Path) -> None:
    (in_tmp / "file").write_text("x")
    with watched() as seen:
        assert (in_tmp / "file").read_text() == "x"
    assert seen == []


# --- Replay buffers --------------------------------------------------------------------------------------------------

BY_NAME = {base.name: base for base in BASES}
PLAIN, GOALS = "replay buffers", "goals, n-step returns"
FIRST, SECOND = "replay-000.safetensors", "replay-001.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Source]:
    folder = tmp_path_factory.mktemp("saved")
    return {name: Source(read_files(BY_NAME[name].save(folder / name))) for name in (PLAIN, GOALS)}


def filled(file: str, name: str, value: Any) -> Callable[[Source], Files]:
    """One number everywhere in a tensor of the same form."""

    def changed(source: Source) -> Files:
        dtype, shape, _ = tensors_of(source.data(file))[name]
        return source.with_tensor(file, name, (dtype, shape, np.full(shape, value, DTYPES[dtype]).tobytes()))

    return changed


def rewards(change: Callable[[dict[str, Any]], object]) -> Callable[[Source], Files]:
    """Another description of the rewards."""

    def changed(source: Source) -> Files:
        described, payload = unpack(source.data(FIRST))
        change(described["rewards"])
        return source.with_file(FIRST, pack(described, payload))

    return changed


def far_ahead(source: Source) -> Files:
    state = source.tree()
    next(iter(state["policies"].values()))["replay"]["pos"] = 10**9
    return source.with_tree(state)


def missing(source: Source) -> Files:
    return Source({name: data for name, data in source.files.items() if name != FIRST}).with_tree(source.tree())


FAULTS: Mapping[str, tuple[str, Callable[[Source], Files], str]] = {
    "missing": (PLAIN, missing, "the file of the replay buffer is missing"),
    "another shape": (PLAIN, rewards(lambda its: its.update(shape=its["shape"][::-1])), "accepted"),
    "another dtype": (PLAIN, rewards(lambda its: its.update(dtype="I32")), "rewards is .*accepted: float32"),
    "a category outside its space": (PLAIN, filled(FIRST, "actions", 99), "actions holds numbers that are not"),
    "a place beyond the buffer": (PLAIN, far_ahead, "pos"),
    "gaps everywhere": (PLAIN, filled(SECOND, "gaps", True), "gaps are not between transitions"),
    "episodes of negative length": (GOALS, filled(FIRST, "ep_length", -1), "not those of episodes"),
    "episodes that begin nowhere": (GOALS, filled(FIRST, "ep_start", 2**40), "not those of episodes"),
    "transitions outside their episode": (GOALS, filled(FIRST, "ep_length", 1), "not those of episodes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_replay_buffer_is_refused_in_words(
    fault: str, saved: Mapping[str, Source], tmp_path: Path
) -> None:
    name, change, words = FAULTS[fault]
    write_files(change(saved[name]), tmp_path / "mutant")
    algorithm = BY_NAME[name].build()
    with pytest.raises(CheckpointError, match=words):
        algorithm.set_state(read_checkpoint(tmp_path / "mutant"))
    buffers: list[Any] = [policy.replay_buffer for policy in algorithm.policies.values()]  # type: ignore[attr-defined]
    assert [buffer.num_transitions for buffer in buffers] == [0, 0]


# --- Data sets -------------------------------------------------------------------------------------------------------

Found = dict[str, dict[str, tuple[str, str]]]  # case -> way -> what came of it, and the message


def read_all(server: ForkServer, folder: Path, *options: str) -> Found:
    run(server, folder, "data_sets.py", str(folder / "found"), *options)
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
