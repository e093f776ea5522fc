"""What runs in a worker: it makes the object that the main process wants, and calls its methods when asked to."""

from __future__ import annotations

import faulthandler
import io
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from marl_sb3.core.envs.faults import RAISED, raise_in_words
from marl_sb3.extensions.remote.processes.channel import Channel, ChannelClosedError, Heartbeat, Kind, Message
from marl_sb3.extensions.remote.processes.messages import Failed, MessageLog, ProcessContext, packed_result
from marl_sb3.signals import ENDING


class Link:
    """A worker's connection with the main process.

    Args:
        connection: descriptor of the socket to the main process.
        status: descriptor of the status file: of the heartbeat, and of the stacks.
        descriptors: further files that the main process has sent.
    """

    def __init__(self, connection: int, status: int, descriptors: Sequence[int] = ()) -> None:
        self.heartbeat = Heartbeat(status)  # tells the main process what this one is doing
        self.log = MessageLog()  # the log records and warnings of this process, which go with every answer
        self.channel = Channel(socket.socket(fileno=connection))  # to the main process
        self.descriptors = descriptors  # as given
        self.number = 0  # of the request that is being answered
        self.served: Any = None  # the object whose methods are called

    def write_to(self, output: int) -> None:
        """Write all output of this process, that of its libraries too, its log and its warnings to this file."""
        self.log.remove()
        sys.stdout.flush()
        sys.stderr.flush()
        for number in (1, 2):
            os.dup2(output, number)

    def tell(self, value: Any) -> None:
        """Send a value before the answer; see `Worker.receive`."""
        self.channel.send(Kind.NEWS, self.number, packed_result(value, "news"))


def serve(connection: int, status: int, *descriptors: int) -> None:
    """Answer requests until the main process closes the connection, asks for `close`, or has ended.

    The first request is `make`, whose result is served. The arguments are descriptors: see `Link`.
    """
    _set_up(status)
    link = Link(connection, status, descriptors)
    link.log.install()
    # The main process notices the end of this one when nobody has the connection: no child of an env may have it.
    os.register_at_fork(after_in_child=link.channel.close)
    ends = False
    try:
        while not ends:
            message = link.channel.receive()
            kind, payload, ends = _answer(link, message)
            link.channel.send(kind, message.number, payload)
    except ChannelClosedError:
        return
    finally:
        sys.stdout.flush()


def _answer(link: Link, message: Message) -> tuple[int, bytes, bool]:
    """Do what a message asks for; returns kind and payload of the answer, and whether the process ends."""
    link.number = message.number
    name, ends = "step", False
    logged: list[Any] = []
    try:
        if message.kind == Kind.STEP:
            return Kind.STEPPED, link.served.step(), False
        name, arguments = pickle.loads(message.payload)
        if name == "make":
            link.served, result = _made(link, *arguments), None
        else:
            result, ends = getattr(link.served, name)(*arguments), name == "close"
        link.heartbeat.advance()
        logged += link.log.taken()
        return Kind.DONE, packed_result((result, logged), name), ends
    except BaseException as error:  # Ctrl-C does not reach a worker: an env has raised KeyboardInterrupt, too
        logged += link.log.taken()
        return Kind.DONE, packed_result((Failed(error), logged), name), ends


def _made(link: Link, context: ProcessContext, packed: bytes) -> Any:
    context.enter()
    try:
        make, arguments = pickle.loads(packed)
    except RAISED as error:
        raise_in_words(error, "importing the env factory in a worker", "the envs")
        raise
    return make(link, *arguments)


def _set_up(status: int) -> None:
    """Leave the signals that end a training to the main process: a service manager sends them to all processes.

    They are handled and not ignored, because programs that an env starts would inherit that. Lines of output are passed
    on when they are complete, in the encoding that `output_thread` reads.
    """
    assert threading.current_thread() is threading.main_thread()
    for number in ENDING:
        signal.signal(number, lambda *_: None)
    faulthandler.enable(status)
    faulthandler.register(signal.SIGUSR1, status)
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}
    for descriptor, name in enumerate(("stdout", "stderr"), 1):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(**how, line_buffering=True, write_through=False)
        else:  # that of a notebook, in whose fork this runs, writes to the notebook by threads that are not here
            setattr(sys, name, os.fdopen(descriptor, "w", buffering=1, closefd=False, **how))
