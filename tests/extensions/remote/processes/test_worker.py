"""When a worker counts as hung."""

from __future__ import annotations

import pytest

from marl_sb3.extensions.remote.processes.channel import Heartbeat, Kind, Message, status_file
from marl_sb3.extensions.remote.processes.fork_server import Forker
from marl_sb3.extensions.remote.processes.worker import Worker, WorkerLostError


def test_the_time_in_which_the_machine_sleeps_does_not_count_and_progress_begins_it_anew() -> None:
    worker = Worker("worker 0", Forker, b"", timeout_s=0.4)
    worker._status = status_file()
    worker.heartbeat = Heartbeat(worker._status)
    worker.heartbeat.enter_env(0)
    looks: list[float] = []

    class Silent:
        def receive(self) -> Message:
            looks.append(0.1)  # a quarter of the time each
            if len(looks) == 3:
                worker.heartbeat.advance()
            raise TimeoutError

        def send(self, *_: object) -> None:
            pass

        close = send

    worker._channel = Silent()  # type: ignore[assignment]
    worker.send(Kind.STEP)
    with pytest.raises(WorkerLostError, match=r"has hung: env 0 has not answered within 0.4 s \(worker_timeout_s\)$"):
        worker.receive()
    assert len(looks) == 3 + 4
    worker.free()
