"""Files cut short, and disks that are full, fail, or take a little at a time."""

from __future__ import annotations

import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attempts import Attempt
from kinds import KINDS
from run_records import contents, differences
from shims import PLACES, Watched, failer
from tensorboard.compat.tensorflow_stub.io.gfile import LocalFileSystem

from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store import checkpoint_format
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint, write_checkpoint
from marl_sb3.files.regular import append_text
from marl_sb3.runs import logs
from marl_sb3.train import main

References = Callable[[str], Path]
Attempts = Callable[[str], Attempt]
Capture = pytest.CaptureFixture[str]
KIND = "mapped-batched"
SAVE = PLACES["save"].calls


@pytest.fixture
def run(reference_of: References, tmp_path: Path) -> Path:
    """A finished run of its own."""
    shutil.copytree(reference_of(KIND), tmp_path / "run")
    return tmp_path / "run"


# --- Files cut short -------------------------------------------------------------------------------------------------


def cut_short(path: Path) -> Iterator[int]:
    """The file at each multiple of 512 bytes below its size, which it has again in the end."""
    data = path.read_bytes()
    for size in range(0, len(data), 512):
        path.write_bytes(data[:size])
        yield size
    path.write_bytes(data)


def test_a_file_that_is_cut_short_anywhere_sends_the_reader_to_the_checkpoint_before(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = CheckpointFolder(run / "checkpoints")
    *_, before, newest = checkpoints.names()
    for path in sorted((checkpoints.path / newest).iterdir()):
        for _ in cut_short(path):
            caplog.clear()
            assert checkpoints.load().name == before
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            assert f"{newest}: {path.name} " in caplog.text
            with pytest.raises(CheckpointError, match=f"{newest}: {path.name} "):
                read_checkpoint(path.parent)
    assert checkpoints.load().name == newest


# --- A disk that fails in a save -------------------------------------------------------------------------------------


def each_failure(monkeypatch: pytest.MonkeyPatch, code: int, action: Callable[[], None]) -> Iterator[OSError]:
    """Let one call within the save fail, the first, the second and so on, until none is left; what was raised."""
    for call in count(1):
        raised = None
        with monkeypatch.context() as patch:
            fail = failer([call, call], code)
            for module, calls in SAVE.items():
                patch.setattr(f"{module}.os", Watched(os, calls["os"], fail))
            try:
                action()
            except OSError as error:
                raised = error
        if raised is None:
            return
        yield raised


def save(folder: CheckpointFolder, iteration: int, like: Checkpoint) -> None:
    about = {"score": {"metric": "m", "value": None, "higher_is_better": True}}
    folder.save(iteration, {**like.state, "marker": iteration}, like.tensors, about, keep=2)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def like(run: Path) -> Checkpoint:
    found = CheckpointFolder(run / "checkpoints").load()
    return replace(found, tensors={file: dict(tensors) for file, tensors in found.tensors.items()})


def test_a_save_that_fails_at_any_call_leaves_the_earlier_checkpoints_as_they_were(
    like: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, failures = CheckpointFolder(tmp_path / "checkpoints"), 0
    save(folder, 1, like)
    save(folder, 2, like)
    before = files_of(folder.path)
    for error in each_failure(monkeypatch, errno.EIO, lambda: save(folder, 3, like)):
        failures += 1
        assert error.errno == errno.EIO
        assert error.filename.startswith(str(folder.path))
        assert sorted(path.name for path in folder.path.iterdir()) == folder.names()
        assert folder.load().state["marker"] in (2, 3)  # 3: it stands, but may not outlive a loss of power
        shutil.rmtree(folder.path / "ckpt-000003", ignore_errors=True)
        assert files_of(folder.path) == before
    assert failures >= 3 * len(list((folder.path / "ckpt-000002").iterdir()))
    assert folder.names() == ["ckpt-000002", "ckpt-000003"]


def test_what_is_replaced_stays_until_the_new_one_stands(
    like: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(marker: str) -> None:
        write_checkpoint(tmp_path / "saved", {"marker": marker}, like.tensors, {})

    write("old")
    for _ in each_failure(monkeypatch, errno.ENOSPC, lambda: write("new")):
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
        if read_checkpoint(tmp_path / "saved").state["marker"] == "new":  # which may not outlive a loss of power
            write("old")
    assert read_checkpoint(tmp_path / "saved").state["marker"] == "new"


def test_the_folder_of_the_checkpoints_cannot_be_made(
    like: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_space_for(monkeypatch, "checkpoints")
    folder = CheckpointFolder(tmp_path / "checkpoints")
    with pytest.raises(OSError, match=r"No space left on device: .*checkpoints'"):
        save(folder, 1, like)
    assert not folder.path.exists()


def test_writes_may_be_short(like: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def a_little(_: str, write: Callable[[int, Any], int], descriptor: int, data: Any) -> int:
        return write(descriptor, data[:100])

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_format, "os", Watched(os, ("write",), a_little))
        save(CheckpointFolder(tmp_path / "short"), 24, like)
    save(CheckpointFolder(tmp_path / "long"), 24, like)
    assert files_of(tmp_path / "short") == files_of(tmp_path / "long")


def test_damaged_checkpoints_with_higher_numbers_do_not_push_out_the_one_that_has_just_been_written(
    like: Checkpoint, tmp_path: Path
) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    for iteration in (10, 20, 30):
        save(folder, iteration, like)
    for name in ("ckpt-000020", "ckpt-000030"):
        (folder.path / name / "state.json").unlink()
    save(folder, 15, like)
    assert folder.load().name == "ckpt-000015"
    for iteration in (25, 35):
        save(folder, iteration, like)
    assert folder.names() == ["ckpt-000030", "ckpt-000035"]  # damaged ones too grow old and go


def test_leftovers_of_a_save_are_never_checkpoints_and_go_with_the_next(like: Checkpoint, tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints")
    save(folder, 1, like)
    for name in (".unfinished-ckpt-000002-0a1b2c3d", ".unfinished-former-0a1b2c3d"):
        shutil.copytree(folder.path / "ckpt-000001", folder.path / name)
    assert folder.names() == ["ckpt-000001"]
    assert contents(folder.load()) == contents(read_checkpoint(folder.path / "ckpt-000001"))
    with pytest.raises(CheckpointError, match="accepted: best, latest, or one of 1"):
        folder.load("2")
    save(folder, 3, like)
    assert sorted(path.name for path in folder.path.iterdir()) == ["ckpt-000001", "ckpt-000003"]


# --- A disk without space, for one file or folder -------------------------------------------------------------------


class FullDisk(io.FileIO):
    """A file that cannot get larger than it may: what fits is written, the rest is refused, as by the system."""

    def __init__(self, path: Path, mode: str, capacity: int) -> None:
        super().__init__(path, mode.replace("t", ""))
        self._capacity = capacity

    def write(self, data: Any) -> int:
        space = self._capacity - self.seek(0, os.SEEK_END)
        if space <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(bytes(data)[:space])


def no_space_in(monkeypatch: pytest.MonkeyPatch, name: str, capacity: int) -> None:
    """Let files of this name hold so many bytes."""
    original = Path.open

    def opened(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if self.name != name or "r" in mode:
            return original(self, mode, *args, **kwargs)
        file = io.BufferedWriter(FullDisk(self, mode.replace("b", ""), capacity))
        return file if "b" in mode else io.TextIOWrapper(file, encoding="utf-8", newline="")

    def appended(path: Path) -> Any:
        return opened(path, "a") if path.name == name else append_text(path)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(logs, "append_text", appended)


def no_space_for(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let folders and locks of this name not be made."""

    def refused(path: Any) -> None:
        if Path(path).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    for owner, call in ((Path, "mkdir"), (os, "open")):
        original = getattr(owner, call)

        def checked(path: Any, *args: Any, original: Any = original, **kwargs: Any) -> Any:
            refused(path)
            return original(path, *args, **kwargs)

        monkeypatch.setattr(owner, call, checked)


# --- A disk that is full while a run trains --------------------------------------------------------------------------


def test_a_checkpoint_that_cannot_be_written_is_warned_of_and_the_training_goes_on(attempt: Attempts) -> None:
    training = attempt(KIND)
    assert training.begin(fail={"place": "save", "calls": [110, 111], "errno": errno.EIO}).wait() == 0
    assert training.said.startswith("WARNING  no checkpoint of iteration ")
    assert training.said.count("WARNING") <= 2
    assert str(training.run / "checkpoints") in "".join(line.strip() for line in training.said.splitlines())
    assert training.differences() == []


def test_a_disk_that_stays_full_ends_the_training_with_an_error_and_with_space_again_it_goes_on(
    attempt: Attempts,
) -> None:
    training = attempt(KIND)
    assert training.begin(fail={"place": "save", "calls": [110, 10**9], "errno": errno.ENOSPC}).wait() == 1
    run, last = training.run, training.said.splitlines()[-1]
    assert last.startswith(f"error: OSError: [Errno 28] No space left on device: '{run}/checkpoints/.unfinished-")
    assert "Traceback" not in training.said
    assert (run / "policies").is_dir()
    assert training.resume() == 0
    assert training.differences() == []


def assert_one_line(capsys: Capture, *parts: str) -> None:
    said = capsys.readouterr().err
    assert said.startswith("error: OSError: [Errno 28] No space left on device")
    assert len(said.splitlines()) == 1
    for part in parts:
        assert part in said


def no_space_for_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let TensorBoard's files hold some 20 kB; of what comes then, a few bytes are written."""
    original = LocalFileSystem.append

    def append(self: Any, path: bytes, data: bytes, binary_mode: bool = False) -> None:
        if os.path.getsize(path) > 20_000:
            original(self, path, data[:7], binary_mode)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(self, path, data, binary_mode)

    monkeypatch.setattr(LocalFileSystem, "append", append)


def no_space_after_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk be full when the policies have just been written."""
    original = MultiAgentAlgorithm.save_policies

    def save_policies(self: MultiAgentAlgorithm, folder: Path) -> None:
        original(self, folder)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(MultiAgentAlgorithm, "save_policies", save_policies)


# What is named -> what fills the disk, and the sizes of such files that are left.
FULL: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], list[int] | None]] = {
    **{name: (partial(no_space_in, name=name, capacity=4000), [4000]) for name in ("result.jsonl", "progress.csv")},
    "events.out.tfevents.": (no_space_for_events, None),
    ".unfinished-policies": (no_space_after_policies, []),
}


@pytest.mark.parametrize("named", FULL)
def test_what_cannot_be_written_ends_the_training_and_with_space_again_it_goes_on(
    named: str, reference_of: References, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    run, (fill, left) = tmp_path / "run", FULL[named]
    with monkeypatch.context() as patch:
        fill(patch)
        assert main(KINDS[KIND].begin(tmp_path, "run")[1:]) == 1
    assert_one_line(capsys, str(run / named))
    if left is not None:
        name = named.removeprefix(".unfinished-")
        assert [path.stat().st_size for path in run.glob(f"*{name}*")] == left
    assert main(["--resume", str(run), "--quiet"]) == 0
    assert differences(reference_of(KIND), run) == []


def test_policies_that_cannot_be_written_either_are_not_what_the_user_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    no_space_in(monkeypatch, "result.jsonl", capacity=4000)
    monkeypatch.setattr(MultiAgentAlgorithm, "save_policies", lambda *_: 1 / 0)
    assert main(KINDS[KIND].begin(tmp_path, "run")[1:]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("WARNING  the policies are not saved: ")
    assert said[-1].startswith("error: OSError: [Errno 28]")


# --- A disk that is full at the start --------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["run", ".lock", ".unfinished-config.yaml"])
def test_a_run_that_cannot_be_set_up_says_so_and_does_not_stand_in_the_way_of_the_next(
    place: str, reference_of: References, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    run = tmp_path / "run"
    command = KINDS[KIND].begin(tmp_path, "run")[1:]
    with monkeypatch.context() as patch:
        no_space_for(patch, place)
        no_space_in(patch, place, capacity=100)
        assert main(command) == 1
    assert_one_line(capsys, f"{place}'")
    assert main(["--resume", str(run)]) == 2
    why = "it does not exist" if place == "run" else "it has no config.yaml"
    assert capsys.readouterr().err == f"error: {run} is not a run folder: {why}\n"
    assert main(command) == 0
    assert differences(reference_of(KIND), run) == []


def test_a_folder_with_anything_else_in_it_is_refused(tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").touch()
    (run / "result.jsonl").touch()
    assert main(KINDS[KIND].begin(tmp_path, "run")[1:]) == 2
    assert "exists and is not an empty folder" in capsys.readouterr().err
