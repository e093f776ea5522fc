"""How a worker is connected with the main process: messages over a pair of sockets, a heartbeat in shared memory."""

from __future__ import annotations

import mmap
import os
import select
import socket
import tempfile
import time
from enum import IntEnum
from struct import Struct, pack
from typing import NamedTuple

_HEADER = Struct("<BxxxIQ")  # kind, number, bytes of the payload
_CHUNK = 2**20  # bytes that are read at a time


class Kind(IntEnum):
    """What a message is.

    The main process sends REQUEST (a call, pickled) and STEP (a call without arguments, which are in shared memory). A
    worker answers with DONE (the result or `Failed`, pickled) or STEPPED (the result is in shared memory; the payload
    is the rest of it). Before its answer, it may send any number of NEWS (a pickled value).
    """

    REQUEST = 1
    STEP = 2
    DONE = 3
    STEPPED = 4
    NEWS = 5


class Message(NamedTuple):
    """One message."""

    kind: int  # a `Kind`
    number: int  # number of the request; an answer has that of its request
    payload: bytes  # what belongs to it; mostly nothing


class ChannelClosedError(Exception):
    """The process at the other end has ended."""


class Channel:
    """One end of a connection.

    Args:
        connection: a stream socket; the channel owns it.
        send_s: how long `send` may wait for the other end; None: for ever.
        receive_s: how long `receive` may wait for it; None: for ever.
        polling_s: how long `receive` asks again and again before it sleeps. To wake a process that sleeps on a core of
            its own takes longer than a step of a quick env.
    """

    def __init__(
        self,
        connection: socket.socket,
        send_s: float | None = None,
        receive_s: float | None = None,
        polling_s: float = 0.0,
    ) -> None:
        self._socket = connection
        self.polling_s = polling_s  # as given; may be changed
        for option, limit_s in ((socket.SO_SNDTIMEO, send_s), (socket.SO_RCVTIMEO, receive_s)):
            if limit_s is not None:
                # Not `settimeout`: with that, Python makes two system calls instead of one.
                seconds, microseconds = divmod(max(1, round(limit_s * 1e6)), 1_000_000)
                self._socket.setsockopt(socket.SOL_SOCKET, option, pack("@ll", seconds, microseconds))
        self._received = bytearray()  # of a message that has not arrived completely

    def fileno(self) -> int:
        """The descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a message.

        Raises:
            ChannelClosedError: nobody can receive it.
            TimeoutError: the other end does not read.
        """
        try:
            self._socket.sendall(_HEADER.pack(kind, number, len(payload)) + payload)
        except BlockingIOError as error:
            raise TimeoutError from error
        except OSError as error:
            raise ChannelClosedError from error

    def receive(self) -> Message:
        """Return the next message. After a `TimeoutError`, another call goes on waiting for the same message.

        Raises:
            ChannelClosedError: the other end has closed the connection.
            TimeoutError: the message has not arrived completely.
        """
        if not self._received:
            data = self._receive(_HEADER.size)
            if len(data) == _HEADER.size:  # mostly a header is all that there is
                kind, number, length = _HEADER.unpack(data)
                if not length:
                    return Message(kind, number, b"")
            self._received += data
        self._fill(_HEADER.size)
        kind, number, length = _HEADER.unpack_from(self._received)
        self._fill(_HEADER.size + length)
        payload = bytes(self._received[_HEADER.size :])
        self._received.clear()
        return Message(kind, number, payload)

    def has_data(self, limit_s: float) -> bool:
        """Wait for data, or for the end of the connection; returns whether something has come."""
        return bool(select.select([self._socket], [], [], max(0.0, limit_s))[0])

    def _fill(self, size: int) -> None:
        while (missing := size - len(self._received)) > 0:
            self._received += self._receive(min(missing, _CHUNK))

    def _receive(self, size: int) -> bytes:
        try:
            data = self._polled(size) if self.polling_s else None
            if data is None:
                data = self._socket.recv(size)
        except BlockingIOError as error:
            raise TimeoutError from error
        except OSError as error:
            raise ChannelClosedError from error
        if not data:
            raise ChannelClosedError
        return data

    def _polled(self, size: int) -> bytes | None:
        """Return data as soon as there are any; None if there are none for so long."""
        until_s = time.perf_counter() + self.polling_s
        while time.perf_counter() < until_s:
            try:
                return self._socket.recv(size, socket.MSG_DONTWAIT)
            except BlockingIOError:
                os.sched_yield()  # another process that wants this core comes first
        return None

    def close(self) -> None:
        """Close the connection; the other end gets a `ChannelClosedError`."""
        self._socket.close()


# --- Shared memory ---------------------------------------------------------------------------------------------------


def anonymous_file(name: str) -> int:
    """Return the descriptor of a file in memory that has no path."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


PAGE = mmap.ALLOCATIONGRANULARITY
_PROGRESS, _ENV, _CALL = range(3)  # the numbers of a heartbeat, each of 64 bits
IN_CALL, AT_REST = 1, 2
_TEXT = slice(64, 320)  # of its text, in bytes


class Heartbeat:
    """What a worker is doing: the first page of its status file, which it writes and the main process reads.

    Args:
        status: descriptor of a file from `status_file`.
    """

    def __init__(self, status: int) -> None:
        self._memory = mmap.mmap(status, PAGE)
        self._numbers = memoryview(self._memory).cast("q")

    @property
    def progress(self) -> int:
        """How many calls of envs the worker has completed."""
        return self._numbers[_PROGRESS]

    @property
    def env(self) -> str:
        """The env that the worker has called last, in words; empty: none so far."""
        return f"env {self._numbers[_ENV] - 1}" if self._numbers[_ENV] else ""

    @property
    def call(self) -> int:
        """`IN_CALL` if the worker is in a call that it has noted, `AT_REST` if the present work has no time limit."""
        return self._numbers[_CALL]

    @property
    def text(self) -> str:
        """What the worker has noted last."""
        return self._memory[_TEXT].rstrip(b"\0").decode(errors="replace")

    def enter_env(self, env_index: int) -> None:
        """Note that a call of this env begins."""
        self._numbers[_ENV] = env_index + 1

    def advance(self) -> None:
        """Note that a call is complete."""
        self._numbers[_PROGRESS] += 1

    def enter(self, text: str) -> None:
        """Note the call that begins now, in words; it has a time limit of its own."""
        self._memory[_TEXT] = text.encode(errors="replace")[:256].ljust(256, b"\0")
        self._numbers[_CALL] = IN_CALL
        self._numbers[_PROGRESS] += 1

    def rest(self) -> None:
        """Note that the work from now on has no time limit."""
        self._numbers[_CALL] = AT_REST


def status_file() -> int:
    """Return the descriptor of a new file for the heartbeat of a worker; behind it, the worker writes its stacks."""
    status = anonymous_file("marl_sb3-status")
    os.ftruncate(status, PAGE)
    os.lseek(status, PAGE, os.SEEK_SET)
    return status
