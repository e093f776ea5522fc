"""Checkpoints on disk: whole or not at all, and nothing is used that has not been verified."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from odd_files import put
from safetensors.numpy import load_file
from small_trainings import bits

from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store import checkpoint_folder, checkpoint_format, tensor_file
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder, find_checkpoint, with_checkpoint
from marl_sb3.extensions.store.checkpoint_format import FORMAT, read_checkpoint, write_checkpoint

STATE = {"a": 1, "list": [1.5, None, "x", True, {"deep": np.arange(3)}], "b": np.ones((2, 0), dtype=bool)}
TENSORS = {"policy-000": {"w": np.eye(3, dtype=np.float32)}, "optimizer-000": {"step": np.array(3.0, np.float32)}}


def written(folder: Path, state: Any = STATE, tensors: Any = TENSORS) -> Path:
    write_checkpoint(folder / "ckpt-000001", state, tensors, {"iteration": 1})
    return folder / "ckpt-000001"


numbers = st.integers(-(2**128), 2**128) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
dtypes = st.sampled_from(["b1", "u1", "i4", "i8", "u4", "f4", "f8"])
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
arrays = dtypes.flatmap(lambda dtype: hnp.arrays(dtype, shapes)).filter(
    lambda a: a.dtype.kind != "f" or bool(np.isfinite(a).all())
)
names = st.text(max_size=5) | st.sampled_from(["$array", "$$array", "$", "a/b"])
trees = st.recursive(
    numbers | st.none() | st.text(max_size=5) | arrays,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(names, children, max_size=3),
    max_leaves=8,
)
LIKE_REFERENCES = {"$array": {"$array": 1, "array": 2}, "$$array": np.arange(2)}
OF_ONE_PATH = {"a": {"b": np.arange(3)}, "a/b": np.arange(4)}
ORDERED_OTHERWISE = {"a": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "b": np.arange(6)[::2]}


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(state=st.dictionaries(names, trees, max_size=3))
@example(state=LIKE_REFERENCES)
@example(state=OF_ONE_PATH)
@example(state=ORDERED_OTHERWISE)
def test_any_tree_of_plain_data_comes_back_as_it_was(state, tmp_path_factory):
    folder = written(tmp_path_factory.mktemp("any"), state)
    assert bits(read_checkpoint(folder).state) == bits(state)


# --- What is refused -------------------------------------------------------------------------------------------------


def relist(folder: Path, name: str, size: int, sha256: str) -> None:
    """Let the manifest say something else of a file."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"size": size, "sha256": sha256}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def rewrite(folder: Path, name: str, data: bytes) -> None:
    """Replace a file, and let the manifest agree."""
    (folder / name).write_bytes(data)
    relist(folder, name, len(data), hashlib.sha256(data).hexdigest())


def as_state(data: bytes) -> Any:
    """Another `state.json`."""
    return lambda folder: rewrite(folder, "state.json", data)


def tensor(dtype: str, shape: list[int], data: bytes) -> Any:
    """A file that says this of its only tensor."""
    header = json.dumps({"w": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    return lambda folder: rewrite(folder, WEIGHTS, len(header).to_bytes(8, "little") + header + data)


def enlarge(folder: Path) -> None:
    with (folder / WEIGHTS).open("r+b") as file:
        try:
            file.truncate(2**43)  # takes no place on the disk
        except OSError:
            pytest.skip("the file system has no files of this size")
    relist(folder, WEIGHTS, 2**43, "0")


def put_a_link(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to(folder.parent / "elsewhere")


WEIGHTS = "policy-000.safetensors"
BAD = {
    "a changed byte": (lambda f: (f / "state.json").write_bytes(b"x" * 9), "state.json has 9 bytes; the manifest says"),
    "another hash": (
        lambda f: (f / "state.json").write_bytes(b" " * (f / "state.json").stat().st_size),
        "state.json is damaged: its SHA-256",
    ),
    "a missing file": (lambda f: (f / "arrays.safetensors").unlink(), "arrays.safetensors is missing"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing"),
    "a file too many": (lambda f: (f / "evil.pkl").write_bytes(b""), "unexpected file 'evil.pkl' in checkpoint"),
    "an unlisted file": (
        lambda f: (f / "policy-001.safetensors").write_bytes(b""),
        "policy-001.safetensors is missing",
    ),
    "a link": (
        lambda f: put("a link to a file", f / "state.json", f.parent),
        "state.json cannot be read: it is a link; accepted: a regular file",
    ),
    "a pipe": (
        lambda f: put("a pipe", f / "state.json", f.parent),
        "state.json cannot be read: it is a pipe, a socket or a device",
    ),
    "a link for the folder": (put_a_link, "not a folder"),
    "another format": (
        lambda f: (f / "manifest.json").write_text((f / "manifest.json").read_text().replace(FORMAT, "zip")),
        "manifest.json/format is 'zip'; accepted: marl_sb3",
    ),
    "no JSON": (as_state(b"{"), "state.json is not valid JSON"),
    "no UTF-8": (as_state(b"\xff"), "state.json is not valid JSON"),
    "infinity": (as_state(b'{"a": 1e999}'), "state.json holds a number that is not finite"),
    "NaN": (as_state(b'{"a": NaN}'), "state.json holds a number that is not finite"),
    "two of a name": (as_state(b'{"a": 1, "a": 2}'), "state.json is not valid JSON: duplicate"),
    "two, escaped": (as_state(b'{"a": 1, "$a": 2}'), "state.json is not valid JSON: duplicate"),
    "many digits": (as_state(b"[" + b"9" * 9999 + b"]"), "state.json is not valid JSON"),
    "great depth": (as_state(b"[" * 99999), "nested too deep"),
    "a list": (as_state(b"[]"), "state.json is not a mapping"),
    "an unknown array": (as_state(b'{"a": {"$array": "x"}}'), "refers to an array that"),
    "a pickle": (lambda f: rewrite(f, WEIGHTS, b"\x80\x04N."), f"{WEIGHTS} is not a valid safetensors file"),
    "a huge header": (
        lambda f: rewrite(f, WEIGHTS, (2**40).to_bytes(8, "little") + (f / WEIGHTS).read_bytes()[8:]),
        f"{WEIGHTS} is not a valid safetensors file",
    ),
    "a tensor of NaN": (tensor("F32", [1], b"\xff" * 4), f"{WEIGHTS}: 'w' is not finite"),
    "neither true nor false": (
        tensor("BOOL", [2], b"\x01\x02"),
        f"{WEIGHTS}: 'w' holds bytes that are neither true nor false",
    ),
    "another dtype": (tensor("BF16", [1], b"\x00\x00"), f"{WEIGHTS}: 'w' has dtype BF16; accepted: I8, "),
    "many dimensions": (tensor("F32", [1] * 33, bytes(4)), f"{WEIGHTS}: 'w' has 33 dimensions; accepted: up to 32"),
    "no shape of an array": (tensor("F32", [0, 2**62, 2**62], b""), f"{WEIGHTS}: 'w' has a shape that no array has"),
    "another shape": (tensor("F32", [2], bytes(4)), f"{WEIGHTS} is not a valid safetensors file"),
    "a huge shape": (tensor("F32", [2**62], bytes(4)), f"{WEIGHTS} is not a valid safetensors file"),
    "larger than the memory": (enlarge, f"{WEIGHTS} has [0-9]+ bytes; accepted: at most"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_as_it_was_written_is_refused(name, tmp_path):
    spoil, message = BAD[name]
    folder = written(tmp_path)
    spoil(folder)
    with pytest.raises(CheckpointError, match=rf"ckpt-000001: .*{message}"):
        read_checkpoint(folder)


def test_a_state_that_is_too_large_is_neither_read_nor_written(tmp_path, monkeypatch):
    folder = written(tmp_path)
    monkeypatch.setattr(checkpoint_format, "_MAX_JSON_BYTES", 10)
    with pytest.raises(CheckpointError, match="accepted: at most 10"):
        read_checkpoint(folder)
    with pytest.raises(OSError, match=r"File too large: .*state.json"):
        written(tmp_path)


# --- Tensors of any size ---------------------------------------------------------------------------------------------


def test_weights_are_verified_in_pieces_and_read_when_they_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_file, "_PIECE_BYTES", 2**12)  # three lines of 340 numbers
    lines = np.arange(7 * 340, dtype=np.float32).reshape(7, 340)
    weights = {
        "w": np.arange(2**20, dtype=np.float32),
        "empty": np.zeros((0, 3)),
        "b": np.array([True]),
        "lines": lines,
    }
    folder = written(tmp_path, {}, {"policy-000": weights})
    read_checkpoint(folder)  # what is imported or cached takes memory, too
    tracemalloc.start()
    read = read_checkpoint(folder).tensors["policy-000"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < weights["w"].nbytes / 4
    assert read.forms["w"] == (np.dtype("<f4"), (2**20,))
    assert bits(read.load(["b", "w"])) == bits({"b": weights["b"], "w": weights["w"]})
    begins, pieces = zip(*read.pieces("lines"), strict=True)
    assert begins == (0, 3, 6)
    np.testing.assert_array_equal(np.concatenate(pieces), lines)
    (folder / WEIGHTS).write_bytes(bytes(read._size))
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS} is damaged: its SHA-256"):
        read.load(["b"])


def test_other_readers_of_the_format_read_our_files(tmp_path):
    tensors = {"b": np.array([True]), "i": np.arange(3, dtype=np.int8), "f": np.ones((2, 2)), "e": np.zeros((0, 4))}
    folder = written(tmp_path, {}, {"policy-000": tensors})
    assert bits(load_file(folder / WEIGHTS)) == bits(tensors)


# --- The checkpoints of a run ----------------------------------------------------------------------------------------


def save(
    folder: CheckpointFolder,
    iteration: int,
    value: float | None,
    keep: int = 2,
    higher: bool = True,
    opposed: str | None = None,
) -> None:
    score = {"metric": "return", "value": value, "higher_is_better": higher, "opposed": opposed}
    folder.save(iteration, {"iteration": iteration}, {}, {"score": score}, keep)


def kept(folder: CheckpointFolder) -> list[int]:
    return [int(name.removeprefix("ckpt-")) for name in folder.names()]


def test_the_newest_and_the_best_are_kept(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints")
    history = []
    for iteration, value in enumerate([1.0, 5.0, 2.0, None, 5.0, 4.0, 3.0], start=1):
        save(folder, iteration, value)
        history.append(kept(folder))
    assert history == [[1], [1, 2], [2, 3], [2, 3, 4], [4, 5], [5, 6], [5, 6, 7]]  # of equals the newer is the best
    asked = ("best", "latest", "6", "ckpt-000006")
    assert [folder.load(which).state["iteration"] for which in asked] == [5, 7, 6, 6]


def test_the_best_is_taken_and_said_unless_the_returns_oppose_each_other(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints")
    assert folder.choose() is None
    save(folder, 1, None)
    assert folder.load(None).why == "ckpt-000001 is the latest: no value says which is the best"
    for iteration, value in enumerate([5.25, 2.0], start=2):
        save(folder, iteration, value)
    assert folder.choose() == ("ckpt-000002", "ckpt-000002 is the best by return (5.25)")
    assert folder.load(None).why == folder.load("best").why == "ckpt-000002 is the best by return (5.25)"
    save(folder, 4, 3.0, opposed="their sum is 1")
    latest = "ckpt-000004 is the latest: their sum is 1, so that return does not show which is the best"
    assert folder.choose() == ("ckpt-000004", latest)
    assert folder.load(None).why == latest
    assert folder.load("best").why == "ckpt-000002 is the best by return (5.25); but their sum is 1"
    assert folder.load("latest").why == folder.load("4").why == ""
    save(folder, 5, 3.0)  # the newest one decides
    assert folder.load(None).name == "ckpt-000002"


def test_iterations_are_ordered_as_numbers(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for iteration in (999_999, 1_000_000, 2):
        save(folder, iteration, None, keep=9)
    assert kept(folder) == [2, 999_999, 1_000_000]


def test_a_damaged_checkpoint_is_passed_over(tmp_path, caplog):
    folder = CheckpointFolder(tmp_path)
    for iteration in (1, 2, 3):
        save(folder, iteration, -iteration, keep=9, higher=False)
    (tmp_path / "ckpt-000003" / "state.json").write_text("{}")
    assert folder.load("latest").state["iteration"] == folder.load("best").state["iteration"] == 2
    assert "ckpt-000003: state.json has 2 bytes" in caplog.text
    with pytest.raises(CheckpointError, match=r"state.json has 2 bytes"):
        folder.load("3")  # which was asked for by name


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="holds no valid checkpoint"):
        CheckpointFolder(tmp_path / "none").load()
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(CheckpointError, match=r"cannot read .*checkpoints: Not a directory"):
        CheckpointFolder(tmp_path / "checkpoints").load()

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    with pytest.raises(CheckpointError, match=f"cannot read {tmp_path}: Permission denied"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize("which", ["0", "-1", "../ckpt-000001", "x", "9" * 5000, "²"])
def test_only_what_is_there_can_be_asked_for(which, tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1, None)
    with pytest.raises(CheckpointError, match="accepted: best, latest, or one of 1"):
        folder.load(which)


def test_a_save_replaces_what_is_there_of_the_iteration_and_what_a_killed_process_left_behind(tmp_path):
    folder = CheckpointFolder(tmp_path)
    (tmp_path / ".unfinished-ckpt-000001-ab12").mkdir()
    (tmp_path / ".unfinished-ckpt-000001-ab12" / "state.json").write_text("half")
    assert folder.names() == []
    save(folder, 1, 1.0)
    (tmp_path / "ckpt-000001" / "state.json").write_text("damaged")
    save(folder, 1, 2.0)
    assert folder.load("1").about.fields("score").number("value") == 2.0
    assert os.listdir(tmp_path) == ["ckpt-000001"]


# --- A training goes on while its checkpoints are read ---------------------------------------------------------------


class Overtaken:
    """A training that writes its next checkpoint, and removes the one before, the first times that one is read."""

    def __init__(self, folder: Path, times: int) -> None:
        self.checkpoints, self.iteration, self.times = CheckpointFolder(folder), 0, times
        self.save()

    def save(self) -> None:
        self.iteration += 1
        weights = {"policy-000": {"w": np.full(3, self.iteration, np.float32)}}
        score = {"metric": "m", "value": float(self.iteration), "higher_is_better": True}
        self.checkpoints.save(self.iteration, STATE, weights, {"score": score}, keep=1)

    def step(self) -> None:
        if self.times:
            self.times -= 1
            self.save()

    def use(self, found: Checkpoint) -> float:
        self.step()
        return float(found.tensors["policy-000"]["w"][0])


@pytest.mark.parametrize("which", ["latest", "best"])
def test_a_checkpoint_that_vanishes_while_it_is_read_is_followed_by_the_next(which, tmp_path, monkeypatch, caplog):
    training, read = Overtaken(tmp_path, 3), checkpoint_folder.read_checkpoint

    def overtaken(folder):
        training.step()
        return read(folder)

    monkeypatch.setattr(checkpoint_folder, "read_checkpoint", overtaken)
    assert training.checkpoints.load(which).name == "ckpt-000004"
    assert caplog.messages == []


@pytest.mark.parametrize("times", [0, 1, 5])
def test_weights_of_a_checkpoint_that_vanishes_before_they_are_read_are_those_of_a_later_one(times, tmp_path):
    training = Overtaken(tmp_path, times)
    weight = with_checkpoint(training.checkpoints.load, training.use)
    assert weight == (1 if not times else 2)  # from the second time on, they are in memory


def test_a_damaged_checkpoint_that_is_still_there_is_an_error(tmp_path):
    training, calls = Overtaken(tmp_path, 0), []

    def use(found):
        calls.append(found.name)
        raise CheckpointError("damaged")

    with pytest.raises(CheckpointError, match="damaged"):
        with_checkpoint(training.checkpoints.load, use)
    assert calls == ["ckpt-000001"]
