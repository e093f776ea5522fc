"""No process is left over when a training with runners on this machine ends, however it does."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import wait_for


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.proof)]
)
def test_nothing_is_left_of_runners(number: int, code: int, tmp_path: Path) -> None:
    options = ["--n-envs", "4", "--runners", "2", "--quiet", "--set", "n_steps=20", "--set", "batch_size=20"]
    command = [sys.executable, "-m", "marl_sb3.train", "arena", *options, "--run-dir", "run"]
    with (tmp_path / "output").open("wb") as file:
        run = subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=file, start_new_session=True)
    results = tmp_path / "run" / "result.jsonl"
    wait_for(lambda: results.is_file() and results.stat().st_size > 0)
    started = psutil.Process(run.pid).children(recursive=True)
    assert len(started) == 3  # the fork server and two runners
    run.send_signal(number)
    assert run.wait(60) == code, (tmp_path / "output").read_text()
    _, alive = psutil.wait_procs(started, timeout=20)
    assert alive == []
    assert any((tmp_path / "run" / "checkpoints").glob("ckpt-*")) == (number == signal.SIGINT)
