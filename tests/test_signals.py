"""Which signals end a command, and which do not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from marl_sb3.cli.command import run_command
from marl_sb3.signals import ENDING, handled


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
