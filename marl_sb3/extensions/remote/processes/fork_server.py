"""The fork server: a process that has imported what workers need, forks them, and does nothing else.

The main process has one `ForkServer` for each group of modules that workers need, and asks it to start and to end
workers. This module, started with `python -m` and the arguments DESCRIPTOR PARENT MODULES, answers on the socket
DESCRIPTOR. When the connection is closed, it kills all workers and ends. With PARENT, the process id of the main
process, the system also tells it when the main process has ended; with 0, it does not.

Every worker is in a process group of its own: a terminal's Ctrl-C does not reach it, and processes that its envs have
started are killed with it.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import importlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from struct import Struct
from typing import NoReturn

from marl_sb3.errors import ConfigError
from marl_sb3.extensions.remote.processes.messages import ProcessContext, output_thread
from marl_sb3.extensions.remote.processes.serve import serve
from marl_sb3.signals import ENDING
from marl_sb3.startup import without_collections

# A request: its number, and the worker to end, 0 to start one. Its answer: the same number, and a process id, an exit
# code or a negative error number.
_MESSAGE = Struct("<Qq")
_START = 0
_MOST_KILLS = 3  # of it in a row, while it starts
_START_S = 120.0  # longest time that its start, or the start or end of a worker, may take
_OUTPUT_S = 1.0  # how long the last output is waited for: a process that an env has started may keep the pipe open


class ForkServerEndedError(Exception):
    """The process that starts workers has ended; the argument, if any, says whether a signal has ended its start."""


class ForkServer:
    """The process that workers are forked from, as the main process sees it.

    Args:
        modules: imported before the first worker is forked; their names, separated by commas.
    """

    def __init__(self, modules: str) -> None:
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
        path = os.pathsep.join(each or os.getcwd() for each in sys.path)  # "" is the working folder
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(parent), modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={**ProcessContext.here().environment, "PYTHONPATH": path},
                process_group=0,  # the main process alone answers to a terminal
            )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._output = output_thread(self._process.stdout, "stdout"), output_thread(self._process.stderr, "stderr")
        try:
            self._answer(0)
        except (OSError, ForkServerEndedError) as error:
            self.close()
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"{error} after {_START_S:g} s") from error
            raise ForkServerEndedError(self._process.returncode < 0) from error

    @property
    def is_alive(self) -> bool:
        """Whether it answers, and belongs to this process and not to one that this process was forked from."""
        return self._main_process == os.getpid() and not self._ended and self._process.poll() is None

    def start(self, descriptors: Sequence[int]) -> int:
        """Fork a worker; returns its process id.

        Args:
            descriptors: those of `serve`; they stay open here.

        Raises:
            ForkServerEndedError: it has ended.
            OSError: the system refuses to start another process.
        """
        answer = self._ask(_START, descriptors)
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer

    def end(self, worker: int) -> int:
        """Kill what runs of a worker and the processes that it has started.

        Returns:
            Its exit code; negative for a signal.

        Raises:
            ForkServerEndedError: it has ended, and its workers with it.
        """
        return self._ask(worker)

    def _ask(self, worker: int, descriptors: Sequence[int] = ()) -> int:
        if self._main_process != os.getpid():
            raise ForkServerEndedError
        with self._lock:
            number = next(self._numbers)
            try:
                socket.send_fds(self._connection, [_MESSAGE.pack(number, worker)], list(descriptors))
                return self._answer(number)
            except (OSError, ForkServerEndedError) as error:
                self._ended = True  # a process that is being killed closes its connection first, and ends later
                raise ForkServerEndedError from error

    def _answer(self, number: int) -> int:
        """Return the answer to a request; answers to others are kept, or nobody waits for them since a Ctrl-C."""
        while number not in self._answers:
            data = self._connection.recv(_MESSAGE.size)
            if len(data) < _MESSAGE.size:
                raise ForkServerEndedError
            answered, value = _MESSAGE.unpack(data)
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
                thread.join(_OUTPUT_S)
        else:
            self._process.returncode = 0  # it is the child of another process


_servers: dict[str, ForkServer] = {}
_starting = threading.RLock()  # two threads that find that one has ended start one new one


def fork_server(modules: str) -> ForkServer:
    """Return the fork server of this process that has imported these modules; a new one if there is none that runs.

    Args:
        modules: their names, separated by commas.

    Raises:
        ConfigError: Python cannot be started.
    """
    with _starting:
        if modules in _servers and not _servers[modules].is_alive:
            _servers.pop(modules).close()
        if modules not in _servers:
            _servers[modules] = _started(modules)
        return _servers[modules]


def _started(modules: str, most_kills: int = _MOST_KILLS) -> ForkServer:
    try:
        return ForkServer(modules)
    except (ForkServerEndedError, OSError) as error:
        if error.args == (True,) and most_kills:  # no fault of its own, and nobody has used it yet
            return _started(modules, most_kills - 1)
        words = "; see the lines above" if isinstance(error, ForkServerEndedError) else f": {error}"
        raise ConfigError(f"worker processes cannot be started with {sys.executable}{words}") from error


@atexit.register
def close_all() -> None:
    """End all fork servers of this process, and their workers."""
    while _servers:
        _servers.popitem()[1].close()


# --- In the fork server ----------------------------------------------------------------------------------------------

_MOST_REQUESTS = 2**12  # that are read at a time
_MOST_DESCRIPTORS = 8  # that come with a request for a worker
_PR_SET_PDEATHSIG = 1
# To the fork server, also if it is stopped, as the system lets orphaned groups continue. Windows has no such signal.
_MAIN_ENDED: signal.Signals = getattr(signal, "SIGUSR2", signal.SIGTERM)


class Forker:
    """Forks workers from this process, and ends them: in a fork server, or in a process that forks its own ones.

    Args:
        inherited: a socket that workers do not keep.
    """

    def __init__(self, inherited: socket.socket | None = None) -> None:
        self._inherited = inherited
        self._running: set[int] = set()

    def start(self, descriptors: Sequence[int]) -> int:
        """See `ForkServer.start`."""
        parent = os.getpid()
        worker = os.fork()
        if worker == 0:
            self._become_worker(parent, descriptors)
        _lead_a_group(worker)
        self._running.add(worker)
        return worker

    def _become_worker(self, parent: int, descriptors: Sequence[int]) -> NoReturn:
        code = 1
        try:
            signal.signal(_MAIN_ENDED, signal.SIG_DFL)
            _lead_a_group(0)
            _end_with(parent, signal.SIGKILL)
            if self._inherited is not None:
                self._inherited.close()
            serve(*descriptors)
            code = 0
        except BaseException as error:
            code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            os.write(descriptors[1], traceback.format_exc().encode())
            os._exit(code)  # here: at the end of this block, the connection would be closed before there is a code
        finally:
            os._exit(code)

    def end(self, worker: int) -> int:
        """See `ForkServer.end`; waits for the worker."""
        if worker not in self._running:
            return 0
        _kill(worker)
        _, status = os.waitpid(worker, 0)
        self._running.discard(worker)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Kill all workers, and wait for them."""
        for worker in list(self._running):
            self.end(worker)

    def main_ended(self, *_: object) -> NoReturn:
        """Kill all workers and end, whatever was being done."""
        for worker in list(self._running):
            _kill(worker)
        os._exit(0)


def _answer_requests(connection: socket.socket, forker: Forker) -> None:
    """Answer the requests of the main process until the connection is closed."""
    connection.sendall(_MESSAGE.pack(0, os.getpid()))
    while (received := socket.recv_fds(connection, _MOST_REQUESTS * _MESSAGE.size, _MOST_DESCRIPTORS))[0]:
        data, descriptors, *_ = received
        for number, worker in _MESSAGE.iter_unpack(data):  # several, if Ctrl-C came between a request and its answer
            try:
                value = forker.start(descriptors) if worker == _START else forker.end(worker)
            except OSError as error:
                value = -(error.errno or errno.EAGAIN)
            connection.sendall(_MESSAGE.pack(number, value))
        for descriptor in descriptors:
            os.close(descriptor)


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


def _kill(worker: int) -> None:
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):  # macOS refuses a group that has ended
            kill(worker, signal.SIGKILL)


def _lead_a_group(process: int) -> None:
    """Make a process, 0 for this one, the leader of a new group; parent and child both do it, whoever comes first."""
    with suppress(OSError):  # it has ended, or is one already
        os.setpgid(process, process)


def main(arguments: Sequence[str]) -> int:
    """Serve the main process; returns the exit code.

    Args:
        arguments: see the module.
    """
    descriptor, parent, modules = int(arguments[0]), int(arguments[1]), arguments[2]
    connection = socket.socket(fileno=descriptor)
    forker = Forker(connection)
    for number in (*ENDING, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    signal.signal(_MAIN_ENDED, forker.main_ended)
    if parent:
        _end_with(parent, _MAIN_ENDED)
    with without_collections():
        for each in modules.split(","):
            importlib.import_module(each)
    try:
        _answer_requests(connection, forker)
    except OSError:  # the main process has ended
        pass
    finally:
        forker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
