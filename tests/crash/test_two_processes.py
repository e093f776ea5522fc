"""One process at a time may write to a run, and Ctrl-C ends it where it can go on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from forked import ForkServer
from run_records import differences
from trained_processes import wait
from trials import N_STEPS, Case
from waiting import wait_for

from marl_sb3.storage.checkpoint_folder import CheckpointFolder
from marl_sb3.train import main

Capture = pytest.CaptureFixture[str]
CASE = Case("mapped", "sync")  # which saves every second iteration


def test_a_run_that_is_training_cannot_be_resumed_until_its_process_is_killed(
    server: ForkServer, tmp_path: Path, capsys: Capture
) -> None:
    run = tmp_path / "run"
    endless = [*CASE.command(tmp_path), "--timesteps", "10000000", "--run-dir", str(run)]
    training = server.start(endless, {}, tmp_path / "output.txt")
    wait_for(lambda: bool(CheckpointFolder(run / "checkpoints").names()))
    assert main(["--resume", str(run), "--quiet"]) == 2
    assert capsys.readouterr().err == f"error: {run} is in use: another process is training this run\n"
    training.send_signal(signal.SIGKILL)
    assert wait(training) == -signal.SIGKILL
    assert main(["--resume", str(run), "--quiet", "--stop", "iteration=1"]) == 0


def test_a_lock_that_is_held_stops_a_start_too(tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with FileLock(run / ".lock"):
        assert main([*CASE.command(tmp_path), "--run-dir", str(run)]) == 2
    assert "is in use" in capsys.readouterr().err
    assert not (run / "config.yaml").exists()


def test_ctrl_c_in_the_middle_of_a_rollout_finishes_the_iteration_and_the_run_goes_on_exactly(
    server: ForkServer, reference_of: Callable[[Case], Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    in_the_seventh = {"interrupt_at_step": 6 * N_STEPS + 5}
    training = server.start([*CASE.command(tmp_path), "--run-dir", str(run)], in_the_seventh, tmp_path / "output.txt")
    assert wait(training) == 130
    assert training.output.read_text().startswith("WARNING  SIGINT: finishing the iteration and saving")
    assert CheckpointFolder(run / "checkpoints").load().name == "ckpt-000007"
    assert wait(server.start(["--resume", str(run), "--quiet"], {}, tmp_path / "output.txt")) == 0
    assert differences(reference_of(CASE), run) == []
