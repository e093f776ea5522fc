"""The fork server as the main process sees it: it starts and ends workers. A process has one for all its vec envs."""

from __future__ import annotations

import atexit
import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from marl_sb3.errors import ConfigError
from marl_sb3.vec_env.workers import fork_server_process
from marl_sb3.vec_env.workers.fork_server_process import ANSWER
from marl_sb3.vec_env.workers.plan import Surroundings
from marl_sb3.vec_env.workers.worker_output import OutputThread

_START_S = 120.0  # longest time that its start, or the start or end of a worker, may take


class ForkServerEndedError(Exception):
    """The process that starts workers has ended."""


class ForkServer:
    """The process that workers are forked from; see `fork_server_process`."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_START_S)
        self._connection = ours
        self._lock = threading.RLock()  # a vec env that is collected within a request ends its workers
        self._numbers = itertools.count(1)  # of the requests
        self._answers: dict[int, int] = {}
        self._ended = False
        self._main_process = os.getpid()
        # To the system, the parent is the thread that starts the process. Only the main thread lives long enough.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", fork_server_process.__name__, str(theirs.fileno()), str(parent)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={**Surroundings.here().environment, "PYTHONPATH": os.pathsep.join(_search_path())},
                process_group=0,  # the main process alone answers to a terminal
            )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._output = OutputThread(self._process.stdout, "stdout"), OutputThread(self._process.stderr, "stderr")
        try:
            self._answer(0)
        except (OSError, ForkServerEndedError):
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether it answers, and belongs to this process and not to one that this process was forked from."""
        return self._main_process == os.getpid() and not self._ended and self._process.poll() is None

    def start(self, descriptors: Sequence[int]) -> int:
        """Fork a worker; returns its process id.

        Args:
            descriptors: those of `process.work`; they stay open here.

        Raises:
            ForkServerEndedError: it has ended.
            OSError: the system refuses to start another process.
        """
        answer = self._ask(None, descriptors)
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer

    def end(self, worker: int) -> int:
        """Kill what runs of a worker and the processes that it has started; returns its exit code.

        Returns:
            Its exit code; negative for a signal.

        Raises:
            ForkServerEndedError: it has ended, and its workers with it.
        """
        return self._ask(worker)

    def _ask(self, request: int | None, descriptors: Sequence[int] = ()) -> int:
        if self._main_process != os.getpid():
            raise ForkServerEndedError
        with self._lock:
            number = next(self._numbers)
            try:
                socket.send_fds(self._connection, [pickle.dumps((number, request))], list(descriptors))
                return self._answer(number)
            except (OSError, ForkServerEndedError) as error:
                self._ended = True  # a process that is being killed closes its connection first, and ends later
                raise ForkServerEndedError from error

    def _answer(self, number: int) -> int:
        """Return the answer to a request; answers to others are kept, or nobody waits for them since a Ctrl-C."""
        while number not in self._answers:
            data = self._connection.recv(ANSWER.size)
            if len(data) < ANSWER.size:
                raise ForkServerEndedError
            answered, value = ANSWER.unpack(data)
            self._answers[answered] = value
        return self._answers.pop(number)

    def close(self) -> None:
        """End it, and all its workers; a process that was forked from this one leaves them alone."""
        self._connection.close()
        if self._main_process == os.getpid():
            try:
                self._process.wait(_START_S)
            except subprocess.TimeoutExpired:  # it was stopped, say
                self._process.kill()
                self._process.wait()
            for thread in self._output:
                thread.end()
        else:
            self._process.returncode = 0  # it is the child of another process


_server: ForkServer | None = None


def fork_server() -> ForkServer:
    """Return the fork server of this process; a new one if there is none, or if it has ended.

    Raises:
        ConfigError: this system cannot fork processes, or Python cannot be started.
    """
    global _server  # noqa: PLW0603 - one for all vec envs
    if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
        raise ConfigError("n_workers: this system cannot fork processes; accepted: 0", key="n_workers")
    if _server is None or not _server.is_alive:
        if _server is not None:
            _server.close()
        try:
            _server = ForkServer()
        except (ForkServerEndedError, OSError) as error:
            words = "; see the lines above" if isinstance(error, ForkServerEndedError) else f": {error}"
            raise ConfigError(
                f"n_workers: workers cannot be started with {sys.executable}{words}", "n_workers"
            ) from error
    return _server


@atexit.register
def _close() -> None:
    if _server is not None:
        _server.close()


def _search_path() -> list[str]:
    """Where modules are found; `""` is the working directory."""
    return [path or os.getcwd() for path in sys.path]
