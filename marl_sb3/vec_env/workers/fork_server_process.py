"""The fork server: a process that has imported what workers need, forks them, and does nothing else.

`python -m marl_sb3.vec_env.workers.fork_server_process DESCRIPTOR PARENT` answers the requests of the main process on
the socket DESCRIPTOR. When the connection is closed, it kills all workers and ends. With PARENT, the process id of the
main process, the system also tells it when the main process has ended; with 0, it does not.

Every worker is in a process group of its own: a terminal's Ctrl-C does not reach it, and processes that its envs have
started are killed with it.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import pickle
import signal
import socket
import sys
import traceback
from contextlib import suppress
from struct import Struct
from typing import NoReturn

from marl_sb3.signals import ENDING
from marl_sb3.vec_env.workers.process import work

ANSWER = Struct("<Qq")  # number of the request; process id, exit code or negative error number

_LARGEST_REQUEST = 2**16  # bytes
_DESCRIPTORS = 3  # that come with a request for a worker
_PR_SET_PDEATHSIG = 1
_MAIN_ENDED = signal.SIGUSR2  # to the fork server; also if it is stopped, as the system lets orphaned groups continue


def _end_with(parent: int, number: int) -> None:
    """Have the system send this process a signal when its parent ends, if it can; end if the parent has ended already.

    Args:
        parent: process id of the parent.
        number: of the signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


class _Server:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._running: set[int] = set()

    def serve(self) -> None:
        """Answer requests until the connection is closed."""
        self._answer(0, os.getpid())
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._connection, _LARGEST_REQUEST, _DESCRIPTORS)
            if not data:
                return
            requests = io.BytesIO(data)  # more than one, if Ctrl-C has come between a request and its answer
            while requests.tell() < len(data):
                number, request = pickle.load(requests)
                self._answer(number, self._start(descriptors) if request is None else self._end(request))

    def _answer(self, number: int, value: int) -> None:
        self._connection.sendall(ANSWER.pack(number, value))

    def _start(self, descriptors: list[int]) -> int:
        """Fork a worker; returns its process id, or the negative error number if the system refuses."""
        parent = os.getpid()
        try:
            worker = os.fork()
            if worker == 0:
                self._become_worker(parent, descriptors)
        except OSError as error:
            worker = -(error.errno or errno.EAGAIN)
        for descriptor in descriptors:
            os.close(descriptor)
        if worker > 0:
            _lead_a_group(worker)
            self._running.add(worker)
        return worker

    def _become_worker(self, parent: int, descriptors: list[int]) -> NoReturn:
        code = 1
        try:
            signal.signal(_MAIN_ENDED, signal.SIG_DFL)
            _lead_a_group(0)
            _end_with(parent, signal.SIGKILL)
            self._connection.close()
            work(*descriptors)
            code = 0
        except BaseException as error:
            code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            os.write(descriptors[2], traceback.format_exc().encode())
            os._exit(code)  # here: at the end of this block, the connection would be closed before there is a code
        finally:
            os._exit(code)

    def _end(self, worker: int) -> int:
        """Kill what runs of a worker and its group, and wait for it; returns its exit code, negative for a signal."""
        if worker not in self._running:
            return 0
        _kill(worker)
        _, status = os.waitpid(worker, 0)
        self._running.discard(worker)
        return os.waitstatus_to_exitcode(status)

    def end_all(self) -> None:
        """Kill all workers, and wait for them."""
        for worker in list(self._running):
            self._end(worker)

    def main_ended(self, *_: object) -> NoReturn:
        """Kill all workers and end, whatever was being done."""
        for worker in list(self._running):
            _kill(worker)
        os._exit(0)


def _kill(worker: int) -> None:
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses a group that has ended
            kill(worker, signal.SIGKILL)


def _lead_a_group(process: int) -> None:
    """Make a process, 0 for this one, the leader of a new group; parent and child both do it, whoever comes first."""
    with suppress(OSError):  # it has ended, or is one already
        os.setpgid(process, process)


def main(descriptor: int, parent: int) -> None:
    """Serve the main process on this socket."""
    server = _Server(socket.socket(fileno=descriptor))
    for number in (*ENDING, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    signal.signal(_MAIN_ENDED, server.main_ended)
    if parent:
        _end_with(parent, _MAIN_ENDED)
    try:
        server.serve()
    except OSError:  # the main process has ended
        pass
    finally:
        server.end_all()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
