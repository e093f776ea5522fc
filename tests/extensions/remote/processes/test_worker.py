"""When a worker counts as hung, and which reply is that to a request. The process is played by this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from marl_sb3.extensions.remote.processes.channel import Heartbeat, Kind, Message, status_file
from marl_sb3.extensions.remote.processes.fork_server import Forker
from marl_sb3.extensions.remote.processes.worker import Worker, WorkerLostError


@pytest.fixture
def worker() -> Iterator[Worker]:
    """One that is in a call of env 0."""
    made = Worker("worker 0", Forker, b"", timeout_s=0.4)
    made._status = status_file()
    made.heartbeat = Heartbeat(made._status)
    made.heartbeat.enter_env(0)
    yield made
    made.free()


def connect(worker: Worker, receive: Callable[[], Message]) -> None:
    """Let it answer so."""
    nothing = SimpleNamespace(receive=receive, send=lambda *_: None, close=lambda: None)
    worker._channel = nothing  # type: ignore[assignment]


def test_the_time_in_which_the_machine_sleeps_does_not_count_and_progress_begins_it_anew(worker: Worker) -> None:
    looks: list[float] = []

    def silent() -> Message:
        looks.append(0.1)  # a quarter of the time each
        if len(looks) == 3:
            worker.heartbeat.advance()
        raise TimeoutError

    connect(worker, silent)
    worker.send(Kind.STEP)
    with pytest.raises(WorkerLostError, match=r"has hung: env 0 has not answered within 0.4 s \(worker_timeout_s\)$"):
        worker.receive()
    assert len(looks) == 3 + 4


def test_the_reply_to_a_request_that_was_given_up_is_none_to_the_next_one(worker: Worker) -> None:
    replies = iter([Message(Kind.DONE, 1, b"to the first"), Message(Kind.DONE, 2, b"to the second")])
    connect(worker, lambda: next(replies))
    for _ in range(2):
        worker.send(Kind.STEP)
    assert worker.receive().payload == b"to the second"
