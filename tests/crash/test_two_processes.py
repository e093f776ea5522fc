"""One process at a time may write to a run, and Ctrl-C ends it where it can go on."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attempts import Attempt
from filelock import FileLock, Timeout
from forked import ForkServer
from kinds import KINDS, N_STEPS
from odd_files import content
from waiting import wait_for

from marl_sb3 import load_policies
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.start import resume_run
from marl_sb3.train import main

Attempts = Callable[[str], Attempt]
Capture = pytest.CaptureFixture[str]
KIND = "mapped-sync"  # which saves every second iteration


def test_a_run_that_is_training_cannot_be_resumed_until_its_process_is_killed(
    attempt: Attempts, capsys: Capture
) -> None:
    run = attempt(KIND).run
    training = attempt(KIND).begin("--timesteps", "10000000")
    wait_for(lambda: bool(CheckpointFolder(run / "checkpoints").names()))
    assert main(["--resume", str(run), "--quiet"]) == 2
    assert capsys.readouterr().err == f"error: {run} is in use: another process is training this run\n"
    training.send_signal(signal.SIGKILL)
    assert training.wait() == -signal.SIGKILL
    assert main(["--resume", str(run), "--quiet", "--stop", "iteration=1"]) == 0


def test_a_lock_that_is_held_stops_a_start_too(tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with FileLock(run / ".lock"):
        assert main(KINDS[KIND].begin(tmp_path, "run")[1:]) == 2
    assert "is in use" in capsys.readouterr().err
    assert not (run / "config.yaml").exists()


def test_policies_are_loaded_from_a_training_that_goes_on_and_keeps_one_checkpoint(
    attempt: Attempts, caplog: pytest.LogCaptureFixture
) -> None:
    run = attempt(KIND).run
    often = ["--checkpoint-every", "1", "--set", "checkpoint_keep=1", "--timesteps", "10000000"]
    training = attempt(KIND).begin(*often)
    wait_for(lambda: bool(CheckpointFolder(run / "checkpoints").names()))
    names: list[str] = []
    wait_for(lambda: names.append(load_policies(run, "latest").checkpoint) or (len(names) >= 12 and len({*names}) > 1))
    training.send_signal(signal.SIGKILL)
    assert training.wait() == -signal.SIGKILL
    assert caplog.messages == []


def test_a_start_that_takes_long_does_not_write_into_a_run_that_was_trained_meanwhile(
    server: ForkServer, tmp_path: Path
) -> None:
    run, begun, go = tmp_path / "run", tmp_path / "begun", tmp_path / "go"
    slow = ["crashing_envs:SlowToBuild", "--set", f"env.begun={begun}", "--set", f"env.go={go}"]
    second = server.start([*slow, "--timesteps", "100", "--run-dir", str(run)], {}, tmp_path / "second.txt")
    wait_for(begun.exists)
    first = server.start(KINDS[KIND].begin(tmp_path, "run")[1:], {}, tmp_path / "first.txt")
    assert first.wait() == 0
    before = content(run)
    go.touch()
    assert second.wait() == 2
    assert second.output.read_text() == f"error: --run-dir: {run} exists and is not an empty folder\n"
    assert content(run) == before


def test_a_resume_reads_the_settings_only_when_nobody_else_can_change_them(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(run_folder, tmp_path / "run"))
    read = RunFolder.read_config

    def locked(files: RunFolder, *arguments: Any) -> Any:
        with pytest.raises(Timeout):
            FileLock(run / ".lock").acquire(timeout=0)
        return read(files, *arguments)

    monkeypatch.setattr(RunFolder, "read_config", locked)
    resume_run(run).close()


def test_ctrl_c_in_the_middle_of_a_rollout_finishes_the_iteration_and_the_run_goes_on_exactly(
    attempt: Attempts,
) -> None:
    training = attempt(KIND)
    assert training.begin(interrupt_at_step=2 * N_STEPS + 5).wait() == 130  # in the third iteration
    assert training.said.startswith("WARNING  SIGINT: finishing the iteration and saving")
    assert CheckpointFolder(training.run / "checkpoints").load().name == "ckpt-000003"
    assert training.resume() == 0
    assert training.differences() == []
