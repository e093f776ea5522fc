"""Which signals end a command, and which do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from marl_sb3.cli import run_command
from marl_sb3.signals import ENDING, ENDS_WITH_INPUT, handled


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
from marl_sb3.signals import end_with_parent

end_with_parent()
print(repr(sys.stdin.read()), flush=True)
signal.pause()
"""


def test_the_end_of_a_parent_ends_what_asked_for_it() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, ENDS_WITH_INPUT: "1"}}
    with subprocess.Popen([sys.executable, "-c", LISTENS], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == b"''\n"  # nothing to read, and it still runs
        process.stdin.close()  # as the system does with the pipes of a killed process
        assert process.wait() == -signal.SIGTERM


def test_the_end_of_its_input_does_not_end_a_process_that_nobody_watches() -> None:
    code = LISTENS.replace("signal.pause()", "import threading; print(threading.active_count())")
    done = subprocess.run([sys.executable, "-c", code], input=b"words", capture_output=True, check=True)
    assert done.stdout == b"'words'\n1\n"
