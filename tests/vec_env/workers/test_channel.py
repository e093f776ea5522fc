"""Messages between processes arrive whole, in whatever pieces the system delivers them."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from marl_sb3.vec_env.workers.channel import Channel, ChannelClosedError, Kind, Message


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Channel]]:
    """A socket to write to, and the channel that reads from it; it waits for a hundredth of a second."""
    ours, theirs = socket.socketpair()
    channel = Channel(theirs, receive_s=0.01)
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
