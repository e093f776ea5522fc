"""The process of a worker."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
from typing import Any

from marl_sb3.signals import ENDING
from marl_sb3.vec_env.workers.channel import Channel, ChannelClosedError
from marl_sb3.vec_env.workers.share_server import ShareServer
from marl_sb3.vec_env.workers.worker_log import MessageLog


def work(connection: int, memory: int, stacks: int) -> None:
    """Answer requests until the main process closes the connection, or has ended.

    Args:
        connection: descriptor of the socket to the main process.
        memory: descriptor of the shared memory.
        stacks: descriptor of the file for the stacks: written on SIGUSR1 and when the process crashes.
    """
    _set_up_signals(stacks)
    _set_up_output()
    log = MessageLog()
    log.install()
    server = ShareServer(memory, log)
    channel = Channel(socket.socket(fileno=connection))
    # The main process notices the end of this one when nobody has the connection: no child of an env may have it.
    os.register_at_fork(after_in_child=channel.close)
    try:
        while not server.closed:
            message = channel.receive()
            kind, payload = server.answer(message)
            channel.polling_s = server.polling_s
            channel.send(kind, message.number, payload)
    except ChannelClosedError:
        return
    finally:
        sys.stdout.flush()


def _set_up_signals(stacks: int) -> None:
    """Leave the signals that end a training to the main process: a service manager sends them to all processes.

    They are handled and not ignored, because programs that an env starts would inherit that.
    """
    assert threading.current_thread() is threading.main_thread()
    for number in ENDING:
        signal.signal(number, lambda *_: None)
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR1, stacks)


def _set_up_output() -> None:
    """Pass lines on when they are complete, in the encoding that `worker_output` reads."""
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace"}
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(**how, line_buffering=True, write_through=False)  # type: ignore[union-attr]
