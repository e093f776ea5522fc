"""What runs in a worker: it makes the object that the main process wants, and calls its methods when asked to."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from marl_sb3.envs.faults import RAISED, raise_in_words
from marl_sb3.processes.channel import Channel, ChannelClosedError, Heartbeat, Kind, Message
from marl_sb3.processes.messages import MessageLog, ProcessContext, packed_error, packed_result
from marl_sb3.signals import ENDING


class Link:
    """A worker's connection with the main process.

    Args:
        connection: descriptor of the socket to the main process.
        status: descriptor of the status file: of the heartbeat, and of the stacks.
        descriptors: further files that the main process has sent.

    Attributes:
        heartbeat: tells the main process what this one is doing.
        log: the log records and warnings of this process, which go with every answer.
        channel: to the main process.
        descriptors: as given.
    """

    def __init__(self, connection: int, status: int, descriptors: Sequence[int] = ()) -> None:
        self.heartbeat = Heartbeat(status)
        self.log = MessageLog()
        self.channel = Channel(socket.socket(fileno=connection))
        self.descriptors = descriptors
        self.number = 0  # of the request that is being answered

    def write_to(self, output: int) -> None:
        """Write all output of this process, that of its libraries too, its log and its warnings to this file."""
        self.log.remove()
        sys.stdout.flush()
        sys.stderr.flush()
        for number in (1, 2):
            os.dup2(output, number)

    def tell(self, value: Any) -> None:
        """Send a value before the answer; see `Worker.news`."""
        self.channel.send(Kind.NEWS, self.number, packed_result(value, "news"))


class Served(Protocol):
    """What a worker serves; its other methods are called by name."""

    def step(self) -> bytes:
        """Answer a `Kind.STEP`."""


Make = Callable[..., Any]  # (link, *arguments) -> what is served


def serve(connection: int, status: int, *descriptors: int) -> None:
    """Answer requests until the main process closes the connection, asks for `close`, or has ended.

    The first request is `make`, whose result is served, or `run`, whose result is the answer and the end. The arguments
    are descriptors: see `Link`.
    """
    _set_up_signals(status)
    link = Link(connection, status, descriptors)
    link.log.install()
    _set_up_output()
    # The main process notices the end of this one when nobody has the connection: no child of an env may have it.
    os.register_at_fork(after_in_child=link.channel.close)
    host = _Host(link)
    try:
        while not host.closed:
            message = link.channel.receive()
            link.channel.send(*host.answer(message))
    except ChannelClosedError:
        return
    finally:
        sys.stdout.flush()


class _Host:
    """Calls the methods of what is served."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._served: Any = None
        self.closed = False

    def answer(self, message: Message) -> tuple[int, int, bytes]:
        """Do what a message asks for; returns kind, number and payload of the answer."""
        self._link.number = number = message.number
        try:
            if message.kind == Kind.STEP:
                return Kind.STEPPED, number, self._served.step()
            name, arguments = pickle.loads(message.payload)
            if name in ("make", "run"):
                made, self.closed = self._made(*arguments), name == "run"
                self._served, result = (None, made) if self.closed else (made, None)
            else:
                result = getattr(self._served, name)(*arguments)
                self.closed = name == "close"
            self._link.heartbeat.advance()
            return Kind.DONE, number, packed_result((result, self._link.log.taken()), name)
        except BaseException as error:  # Ctrl-C does not reach a worker: an env has raised KeyboardInterrupt, too
            return Kind.FAILED, number, pickle.dumps((packed_error(error), self._link.log.taken()))

    def _made(self, context: ProcessContext, packed: bytes) -> Any:
        context.enter()
        try:
            make, arguments = pickle.loads(packed)
        except RAISED as error:
            raise_in_words(error, "importing the env factory in a worker", "the envs")
            raise
        return make(self._link, *arguments)


def _set_up_signals(status: int) -> None:
    """Leave the signals that end a training to the main process: a service manager sends them to all processes.

    They are handled and not ignored, because programs that an env starts would inherit that.
    """
    assert threading.current_thread() is threading.main_thread()
    for number in ENDING:
        signal.signal(number, lambda *_: None)
    faulthandler.enable(status)
    faulthandler.register(signal.SIGUSR1, status)


def _set_up_output() -> None:
    """Pass lines on when they are complete, in the encoding that `OutputThread` reads."""
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(**how, line_buffering=True, write_through=False)  # type: ignore[union-attr]
