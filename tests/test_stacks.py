"""What keeps a finished command from ending is named."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator

import pytest

from marl_sb3 import stacks
from marl_sb3.cli import run_command


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """What the threads of a test wait for; it opens when the test ends."""
    monkeypatch.setattr(stacks, "_END_S", 0.01)
    event = threading.Event()
    yield event
    event.set()


def test_a_thread_that_python_waits_for_is_named(gate: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    def command() -> int:
        threading.Thread(target=gate.wait, name="physics").start()
        threading.Thread(target=gate.wait, name="sound", daemon=True).start()
        return 0

    assert run_command(command, 0) == 0
    first, second = caplog.messages
    assert first == "still running, and awaited before this process ends: thread 'physics'"
    assert second.startswith("an env that starts threads or processes has to end them in close()")


def test_a_process_that_python_waits_for_is_named(gate: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=theirs.recv, name="simulator")
    assert run_command(lambda: child.start() or 0, 0) == 0
    assert f"process 'simulator' ({child.pid})" in caplog.messages[0]
    ours.send("end")
    child.join()


def test_nothing_is_said_of_threads_that_end_or_were_there_before(
    gate: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "_END_S", 30.0)
    threading.Thread(target=gate.wait).start()
    assert run_command(lambda: threading.Thread(target=lambda: None).start() or 0, 0) == 0
    assert caplog.messages == []
