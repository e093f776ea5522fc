"""The processes of workers: what they inherit, print and leave behind, and systems that do not start them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from crashing_envs import Asleep, Fatal, Numbers, Parent, Printing
from waiting import is_running, wait_for
from worker_vec_envs import restarts, workers_of, zero_step, zeros

from marl_sb3 import make_vec_env
from marl_sb3.errors import ConfigError, VecEnvOrderError
from marl_sb3.extensions.remote.processes.fork_server import ForkServer, fork_server

MODULE = "marl_sb3.extensions.remote.workers.server"


def test_what_envs_print_is_printed_by_this_process(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with workers_of(Printing, n_envs=2) as vec:
        zero_step(vec)
    wait_for(lambda: lines.extend(capsys.readouterr().out.splitlines()) or len(lines) == 4)
    assert sorted(lines) == ["env 0 → step 0", "env 1 → step 0", "from below", "from below"]


def test_what_an_env_has_started_ends_with_its_worker() -> None:
    with workers_of(Parent, n_envs=2) as vec:
        first = vec.call("child_process", [0, 1])
        os.kill(vec.call("process", [0])[0], signal.SIGKILL)
        zero_step(vec)  # at once, although the child has inherited the connection of its parent
        later = vec.call("child_process", [0, 1])
        assert later[1] == first[1]
        wait_for(lambda: not is_running(first[0]))
    wait_for(lambda: not any(map(is_running, later)))


def test_a_worker_that_ends_while_it_makes_its_envs_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "now").touch()
    with workers_of(Fatal, n_envs=2, folder=str(tmp_path), at=-1) as vec:
        assert restarts(vec) == 1


def test_envs_that_hang_are_not_waited_for_after_an_interrupt(caplog: pytest.LogCaptureFixture) -> None:
    with workers_of(Asleep, n_envs=2, worker_timeout_s=0.1) as vec:
        vec.send(zeros(vec))
    words = "worker {0} (env {0}) has hung: env {0} has not answered after an interrupt"
    assert [message.partition(",")[0] for message in caplog.messages] == [words.format(0), words.format(1)]


def test_a_system_without_files_in_memory_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("memfd_create", "posix_fallocate"):
        monkeypatch.delattr(os, name)
    with workers_of(Numbers, n_envs=2) as vec:
        assert zero_step(vec).acted.all()


def test_more_workers_than_files_may_be_open_are_refused() -> None:
    fork_server(MODULE)
    used = sorted(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(used) + 3, limits[1]))
    try:
        with pytest.raises(
            ConfigError,
            match=r"^n_workers is 9, but worker \d \(env \d\) could not be started: Too many open files; accepted: "
            r"fewer workers, or higher limits \(ulimit -n for open files, ulimit -u for processes\)$",
        ):
            make_vec_env(Numbers, n_envs=9, n_workers=9)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert sorted(os.listdir("/proc/self/fd")) == used


def test_an_interrupt_leaves_no_answer_to_another_request() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    server = fork_server(MODULE)
    os.kill(server._process.pid, signal.SIGSTOP)  # so that the next request comes before it has read this one
    before = signal.signal(signal.SIGALRM, interrupt)
    for _ in range(2):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            server.end(1)
    signal.signal(signal.SIGALRM, before)
    threading.Timer(0.1, os.kill, (server._process.pid, signal.SIGCONT)).start()
    with workers_of(Numbers, n_envs=1, n_workers=1) as vec:
        (worker,) = vec.call("process", [0])
    assert not psutil.pid_exists(worker)


def test_a_file_in_the_working_folder_hides_no_module_that_this_process_has(in_tmp: Path) -> None:
    Path("gymnasium.py").write_text("raise SystemExit('found in the working folder')")
    ForkServer(MODULE).close()


def test_a_fork_of_this_process_leaves_the_envs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    words = r"^the workers belong to process \d+, of which this one is a fork$"
    with workers_of(Numbers, n_envs=1, n_workers=1) as vec:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            with pytest.raises(VecEnvOrderError, match=words):
                vec.reset()
        vec.reset()


@pytest.mark.usefixtures("real_fork_servers")
@pytest.mark.parametrize("kills", [3, 4])
def test_a_fork_server_that_is_killed_while_it_starts_is_started_again(
    kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Killed(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self.pid)
            if len(started) <= kills:
                self.kill()

    monkeypatch.setattr(subprocess, "Popen", Killed)
    if kills == 3:
        assert fork_server(MODULE).is_alive
    else:
        with pytest.raises(ConfigError, match=r"^worker processes cannot be started with .*; see the lines above$"):
            fork_server(MODULE)
    assert len(started) == 4


@pytest.mark.usefixtures("real_fork_servers")
def test_a_fork_server_that_does_not_answer_in_time_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl_sb3.extensions.remote.processes.fork_server._START_S", 0.001)
    with pytest.raises(ConfigError, match=r"^worker processes cannot be started with .*: timed out after 0\.001 s$"):
        fork_server(MODULE)


@pytest.mark.usefixtures("real_fork_servers")
def test_a_fork_server_that_has_closed_its_connection_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with workers_of(Numbers, n_envs=2, max_worker_restarts=1) as vec:
        server, workers = fork_server(MODULE), vec.call("process", [0, 1])
        os.kill((process := server._process).pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_running, workers)))
        poll = process.poll
        monkeypatch.setattr(process, "poll", lambda: None)  # as if it had not ended yet
        assert zero_step(vec).acted.all()
        assert restarts(vec) == 2
        assert poll() == -signal.SIGKILL
