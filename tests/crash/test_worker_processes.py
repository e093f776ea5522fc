"""No process and no file is left over, whatever of a vec env with workers is killed; and what a hanging one shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from crashing_envs import Numbers
from waiting import is_running, wait_for

from marl_sb3 import make_vec_env
from marl_sb3.extensions.remote.processes.fork_server import ForkServer

SCRIPT = """
import os, sys, time
sys.path[:0] = {path!r}
from crashing_envs import Asleep, Numbers, Parent
from marl_sb3.stacks import stacks_on_signal
from marl_sb3.core.vec_env.make import make_vec_env
import numpy as np
vec = make_vec_env({env}, n_envs=2, n_workers=2, worker_timeout_s=100)
vec.reset()
workers = vec.call("process", [0, 1])
if {env} is Parent:
    workers += vec.call("child_process", [0, 1])
with stacks_on_signal():
    print(vec._supervisor.workers[0]._fork_server._process.pid, *workers, flush=True)
    while {steps}:
        vec.step([np.zeros((2, 2), int)])
        time.sleep(0.001)
"""
PATH = [str(Path(__file__).parents[1])]


def started(env: str, steps: bool = True) -> tuple[subprocess.Popen[str], list[int]]:
    """A process with two workers, and the ids of the processes that belong to it."""
    script = SCRIPT.format(path=PATH, env=env, steps=steps)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, [int(number) for number in process.stdout.readline().split()]


@pytest.mark.parametrize(
    "stopped",
    [
        pytest.param((), marks=pytest.mark.proof),
        pytest.param(("worker",), marks=pytest.mark.proof),
        ("fork_server", "worker"),
    ],
    ids=["nothing stopped", "a stopped worker", "all stopped"],
)
def test_nothing_outlives_the_main_process(stopped: tuple[str, ...]) -> None:
    before = set(os.listdir("/dev/shm"))
    main, (fork_server, *workers) = started("Parent")
    ids = {"fork_server": fork_server, "worker": workers[0]}
    for name in stopped:
        os.kill(ids[name], signal.SIGSTOP)
    # The system lets an orphaned group continue only if it is stopped by then, not if it is about to be.
    wait_for(lambda: all(psutil.Process(ids[name]).status() == psutil.STATUS_STOPPED for name in stopped))
    main.kill()
    main.communicate()
    wait_for(lambda: not any(map(is_running, [fork_server, *workers])))
    assert set(os.listdir("/dev/shm")) <= before


def test_a_script_that_ends_leaves_nothing_and_says_nothing() -> None:
    main, processes = started("Numbers", steps=False)
    _, errors = main.communicate()
    assert (main.returncode, errors) == (0, "")
    assert not any(map(is_running, processes))


def test_workers_are_replaced_with_the_process_that_starts_them_and_end_with_it() -> None:
    main, (fork_server, *workers) = started("Numbers")
    os.kill(fork_server, signal.SIGKILL)
    wait_for(lambda: not any(map(is_running, workers)))
    wait_for(lambda: len(psutil.Process(main.pid).children(recursive=True)) == 3)
    (another,) = psutil.Process(main.pid).children()
    replaced = [process.pid for process in another.children()]
    another.kill()
    main.kill()
    _, errors = main.communicate()
    assert errors.count("has ended: the process that starts workers was killed, in env") >= 2
    wait_for(lambda: not any(map(is_running, replaced)))


def test_workers_are_started_again_when_the_process_that_starts_them_is_killed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, starts = ForkServer.start, 0

    def killed(server: ForkServer, *arguments: Any) -> int:
        nonlocal starts
        starts += 1
        if starts == 2:
            (process := server._process).kill()
            process.wait()
        return start(server, *arguments)

    monkeypatch.setattr(ForkServer, "start", killed)
    vec = make_vec_env(Numbers, n_envs=2, n_workers=2)
    vec.reset()
    assert vec.call("step_count", [0, 1]) == [0, 0]
    assert vec.health is not None
    assert (vec.health.num_healthy_workers, starts) == (2, 4)
    vec.close()


def test_a_signal_shows_what_the_main_process_and_its_workers_do() -> None:
    main, processes = started("Asleep")
    time.sleep(0.2)
    os.kill(main.pid, signal.SIGUSR1)
    assert main.stderr is not None
    shown: list[str] = []
    while sum("in sleep_long" in line for line in shown) < 2:
        line = main.stderr.readline()
        assert line, "".join(shown)
        shown.append(line)
    main.kill()
    main.communicate()
    assert any("supervisor.py" in line for line in shown)
    assert [line for line in shown if line.startswith("stacks of")] == [
        f"stacks of worker {number} (env {number}):\n" for number in (0, 1)
    ]
    wait_for(lambda: not any(map(is_running, processes)))
