"""Which signals end a command, and which do not."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from documentation import ROOT

from marl_sb3.cli import run_command
from marl_sb3.signals import ENDING, ENDS_WITH_INPUT, handled
from marl_sb3.startup import is_command


def sending(*numbers: int) -> Callable[[], int]:
    def command() -> int:
        for number in numbers:
            os.kill(os.getpid(), number)
        return 0

    return command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_a_command(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(each) for each in ENDING]
    assert run_command(sending(number), 0) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert [signal.getsignal(each) for each in ENDING] == before


def test_an_interrupt_that_is_lost_in_a_function_that_c_calls_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        ctypes.CFUNCTYPE(None)(sending(signal.SIGTERM))()
        time.sleep(30)
        return 0

    assert run_command(command, 0) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("package", "code"),
    [("torch", "send(); done.append(True)"), ("", "def _raw_object_cache_notify(): send(); done.append(True)")],
)
def test_where_c_code_must_get_an_answer_an_interrupt_waits(
    package: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the import of PyTorch, its C++ would end the process; numba's compiler would go on without an object."""
    done: list[bool] = []

    def command() -> int:
        names = {"__package__": package, "send": sending(signal.SIGTERM), "done": done}
        exec(code, names)
        names.get("_raw_object_cache_notify", len)(*[()] * (package == "torch"))
        time.sleep(30)
        return 0

    assert run_command(command, 0) == 130
    assert done == [True]
    assert capsys.readouterr().err == "interrupted\n"


TWICE = """
import os, signal, threading, time

def twice():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.02)

threading.Thread(target=twice).start()
time.sleep(30)
"""
STARTS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.orig_argv = ["python", "-m", "marl_sb3.train"]
import marl_sb3.startup
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("command", [["-m", "marl_sb3.doctor", "arena", "--import", "twice"], ["-c", STARTS]])
def test_ctrl_c_ends_a_command_that_starts_without_a_traceback_however_often(command: list[str], in_tmp: Path) -> None:
    Path("twice.py").write_text("import signal; signal.signal(signal.SIGINT, signal.default_int_handler)" + TWICE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(in_tmp)])}
    done = subprocess.run([sys.executable, *command], check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


HANGS = """
import sys, threading
sys.orig_argv = ["python", "-m", "marl_sb3.serve"]
from marl_sb3.startup import end_within
threading.Thread(target=threading.Event().wait).start()
end_within(0.1)
"""


def test_a_command_that_was_to_end_does_not_wait_for_threads_that_hang() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    ("argv", "is_one"),
    [
        (["python", "-X", "dev", "-m", "marl_sb3.train", "arena"], True),
        (["python", "-uIm", "marl_sb3"], True),
        (["python", "-mmarl_sb3.train"], True),
        (["python", "-W", "error", "-Xdev", "--check-hash-based-pycs", "always", "-m", "marl_sb3.train"], True),
        (["python", "/usr/bin/marl-sb3", "train"], True),
        (["python", "-sP", "marl-sb3", "train"], True),
        (["python.exe", r"C:\Scripts\marl-sb3.exe", "train"], True),
        (["python.exe", "C:\\Scripts\\marl-sb3-script.py"], True),
        (["python", "marl-sb3-sweep.py"], False),
        (["python", "my-marl-sb3"], False),
        (["python", "my.py", "-m", "marl_sb3.train"], False),
        (["python", "my.py", "/usr/bin/marl-sb3"], False),
        (["python", "-c", "pass", "-m", "marl_sb3.train"], False),
        (["python", "-X", "-m", "marl_sb3.train"], False),
        (["python", "-W", "marl-sb3", "my.py"], False),
        (["python", "-m", "marl_sb3_mine.train"], False),
        (["python", "-"], False),
        (["python"], False),
        (["python", "-m", "marl_sb3.extensions.remote.processes.fork_server"], False),
        (["python", "-m", "mine", "-m", "marl_sb3.train"], False),
        (["python", "mine.py", "marl-sb3"], False),
    ],
)
def test_a_process_is_a_command_if_it_was_started_as_one(
    argv: list[str], is_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", argv)
    assert is_command() == is_one


def test_a_repeated_hangup_does_not_disturb_the_cleanup() -> None:
    cleaned = []

    def command() -> int:
        try:
            return sending(signal.SIGHUP)()
        finally:
            sending(signal.SIGHUP)()
            cleaned.append(True)

    assert run_command(command, 0) == 130
    assert cleaned == [True]


def test_what_is_ignored_stays_ignored() -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        received: list[int] = []
        with handled(ENDING, lambda number, _: received.append(number)):
            sending(signal.SIGHUP, signal.SIGTERM)()
        assert received == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)


LISTENS = """
import signal, sys
from marl_sb3 import signals

signals._GRACE_S = 0.2
signals.end_with_parent()
print(repr(sys.stdin.read()), flush=True)
signal.pause()
"""
BUSY = LISTENS.replace("signals.end", "signal.signal(signal.SIGTERM, print)\nsignals.end").replace(
    "signal.pause()", "while True: signal.pause()"
)


@pytest.mark.parametrize(("code", "end"), [(LISTENS, signal.SIGTERM), (BUSY, signal.SIGKILL)])
def test_the_end_of_a_parent_ends_what_asked_for_it(code: str, end: signal.Signals) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, ENDS_WITH_INPUT: "1"}}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"''\n"  # nothing to read, and it still runs
        process.stdin.close()  # as the system does with the pipes of a killed process
        assert process.wait() == -end


def test_the_end_of_its_input_does_not_end_a_process_that_nobody_watches() -> None:
    code = LISTENS.replace("signal.pause()", "import threading; print(threading.active_count())")
    done = subprocess.run([sys.executable, "-c", code], input=b"words", capture_output=True, check=True)
    assert done.stdout == b"'words'\n1\n"
