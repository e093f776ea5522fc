"""Messages between processes arrive whole, in whatever pieces the system delivers them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from marl_sb3.extensions.remote.processes.channel import Channel, ChannelClosedError, Kind, Message
from marl_sb3.extensions.remote.workers.spec import polling_s


@pytest.fixture(params=[0.0, 1e-4], ids=["sleeps", "polls"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, Channel]]:
    """A socket to write to, and the channel that reads from it; it waits for a hundredth of a second."""
    ours, theirs = socket.socketpair()
    channel = Channel(theirs, receive_s=0.01, polling_s=request.param)
    yield ours, channel
    ours.close()
    channel.close()


def packed(payload: bytes) -> bytes:
    """The bytes of a message."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours).send(Kind.DONE, 7, payload)
        return theirs.recv(2**16)


@pytest.mark.parametrize("payload", [b"", b"x", b"the result"])
def test_a_message_in_two_pieces_is_waited_for(payload: bytes, ends: tuple[socket.socket, Channel]) -> None:
    ours, channel = ends
    data = packed(payload)
    for first in range(1, len(data)):
        ours.sendall(data[:first])
        with pytest.raises(TimeoutError):
            channel.receive()
        ours.sendall(data[first:])
        assert channel.receive() == Message(Kind.DONE, 7, payload)


def test_messages_that_arrive_together_are_told_apart(ends: tuple[socket.socket, Channel]) -> None:
    ours, channel = ends
    ours.sendall(packed(b"one") + packed(b"") + packed(b"three"))
    assert [channel.receive().payload for _ in range(3)] == [b"one", b"", b"three"]
    assert not channel.has_data(0.0)


def test_the_end_of_the_other_side_within_a_message_is_told(ends: tuple[socket.socket, Channel]) -> None:
    ours, channel = ends
    ours.sendall(packed(b"one")[:-1])
    ours.close()
    with pytest.raises(ChannelClosedError):
        channel.receive()


def test_a_message_that_comes_while_the_channel_polls_is_returned() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(theirs, receive_s=1e-6, polling_s=60)  # without polling, it would give up at once
    with ours:
        threading.Timer(0.1, lambda: ours.sendall(packed(b"late"))).start()
        assert channel.receive().payload == b"late"
    with pytest.raises(ChannelClosedError):
        channel.receive()
    channel.close()


@pytest.mark.parametrize(("cores", "n_workers", "polls"), [(2, 1, True), (2, 2, False), (8, 7, True), (8, 9, False)])
def test_processes_poll_only_if_each_has_a_core(
    cores: int, n_workers: int, polls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert (polling_s(n_workers) > 0) is polls
