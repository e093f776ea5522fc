"""The process that workers are forked from: it has imported what they need, and does nothing else.

`python -m marl_sb3.vec_env.workers.nursery_process DESCRIPTOR` answers the requests of the main process on that socket.
A worker inherits nothing from the main process but what is sent to it. When the connection is closed, or the main
process has ended, all workers are killed.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import sys
import traceback
from contextlib import suppress

from marl_sb3.vec_env.workers.process import WorkerPlace, work

_LARGEST_REQUEST = 2**16  # bytes
_DESCRIPTORS = 3  # that come with a request for a worker
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Have the system kill this process when its parent ends, if it can; it does not outlive a parent that has ended.

    Args:
        parent: process id of the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class _Nursery:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._running: set[int] = set()

    def serve(self) -> None:
        """Answer requests until the connection is closed."""
        self._answer(os.getpid())
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._connection, _LARGEST_REQUEST, _DESCRIPTORS)
            if not data:
                return
            request = pickle.loads(data)
            if isinstance(request, WorkerPlace):
                self._answer(self._fork(request, descriptors))
            else:
                self._answer(self._end(request))

    def _answer(self, value: int) -> None:
        self._connection.sendall(value.to_bytes(8, "little", signed=True))

    def _fork(self, place: WorkerPlace, descriptors: list[int]) -> int:
        """Start a worker; returns its process id."""
        nursery = os.getpid()
        worker = os.fork()
        if worker == 0:
            self._become_worker(nursery, place, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._running.add(worker)
        return worker

    def _become_worker(self, nursery: int, place: WorkerPlace, descriptors: list[int]) -> None:
        code = 1
        try:
            end_with_parent(nursery)
            self._connection.close()
            work(place, *descriptors)
            code = 0
        except BaseException as error:
            code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            with suppress(OSError):
                os.write(descriptors[2], traceback.format_exc().encode())
        finally:
            os._exit(code)

    def _end(self, worker: int) -> int:
        """Kill a worker if it runs, and wait for it; returns its exit code, negative for a signal."""
        if worker not in self._running:
            return 0
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        _, status = os.waitpid(worker, 0)
        self._running.discard(worker)
        return os.waitstatus_to_exitcode(status)

    def end_all(self) -> None:
        """Kill all workers."""
        for worker in list(self._running):
            self._end(worker)


def main(descriptor: int) -> None:
    """Serve the main process on this socket."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    nursery = _Nursery(socket.socket(fileno=descriptor))
    try:
        nursery.serve()
    except OSError:  # the main process has ended
        pass
    finally:
        nursery.end_all()


if __name__ == "__main__":
    main(int(sys.argv[1]))
