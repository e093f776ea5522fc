"""Start and end workers by a process of their own, see `nursery_process`: there is one of it in a main process."""

from __future__ import annotations

import atexit
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from marl_sb3.errors import ConfigError
from marl_sb3.vec_env.workers.process import WorkerPlace

_MODULE = "marl_sb3.vec_env.workers.nursery_process"
_START_S = 120.0  # longest time that its start, or the start or end of a worker, may take
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_PARENT_DEATH = "import sys; from {module} import end_with_parent, main; end_with_parent({parent}); main({descriptor})"
_PLAIN = "import sys; from {module} import main; main({descriptor})"


class NurseryEndedError(Exception):
    """The process that starts workers has ended."""


class Nursery:
    """The process that workers are forked from."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_START_S)
        self._connection = ours
        self._lock = threading.Lock()
        self.main_process = os.getpid()
        # A parent's death is that of the thread that has started the process: only the main thread lives long enough.
        code = _PARENT_DEATH if threading.current_thread() is threading.main_thread() else _PLAIN
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code.format(module=_MODULE, parent=os.getpid(), descriptor=theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**dict.fromkeys(_ONE_THREAD, "1"), **os.environ, "PYTHONPATH": os.pathsep.join(_search_path())},
            )
        try:
            self._answer()
        except NurseryEndedError:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether it runs, and belongs to this process and not to one that this process was forked from."""
        return self.main_process == os.getpid() and self._process.poll() is None

    def start(self, place: WorkerPlace, descriptors: Sequence[int]) -> int:
        """Fork a worker; returns its process id.

        Args:
            descriptors: those of `process.work`; they stay open here.

        Raises:
            NurseryEndedError: it has ended.
        """
        return self._ask(place, descriptors)

    def end(self, worker: int) -> int:
        """Kill a worker if it runs, and wait for it; returns its exit code, negative for a signal.

        Raises:
            NurseryEndedError: it has ended, and its workers with it.
        """
        return self._ask(worker)

    def _ask(self, request: WorkerPlace | int, descriptors: Sequence[int] = ()) -> int:
        if self.main_process != os.getpid():
            raise NurseryEndedError
        with self._lock:
            try:
                socket.send_fds(self._connection, [pickle.dumps(request)], list(descriptors))
            except OSError as error:
                raise NurseryEndedError from error
            return self._answer()

    def _answer(self) -> int:
        data = b""
        while len(data) < 8:
            try:
                part = self._connection.recv(8 - len(data))
            except OSError as error:
                raise NurseryEndedError from error
            if not part:
                raise NurseryEndedError
            data += part
        return int.from_bytes(data, "little", signed=True)

    def close(self) -> None:
        """End it, and all its workers; a process that was forked from this one leaves them alone."""
        self._connection.close()
        if self.main_process == os.getpid():
            try:
                self._process.wait(_START_S)
            except subprocess.TimeoutExpired:  # it was stopped, say
                self._process.kill()
                self._process.wait()
        else:
            self._process.returncode = 0  # it is the child of another process


_nursery: Nursery | None = None


def nursery() -> Nursery:
    """Return the nursery of this process; a new one if there is none, or if it has ended.

    Raises:
        ConfigError: this system cannot fork processes, or Python cannot be started.
    """
    global _nursery  # noqa: PLW0603 - one for all vec envs
    if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
        raise ConfigError("n_workers: this system cannot fork processes; accepted: 0", key="n_workers")
    if _nursery is None or not _nursery.is_alive:
        if _nursery is not None:
            _nursery.close()
        try:
            _nursery = Nursery()
        except (NurseryEndedError, OSError) as error:
            words = "; see the lines above" if isinstance(error, NurseryEndedError) else f": {error}"
            raise ConfigError(
                f"n_workers: workers cannot be started with {sys.executable}{words}", "n_workers"
            ) from error
    return _nursery


@atexit.register
def _close() -> None:
    if _nursery is not None:
        _nursery.close()


def _search_path() -> list[str]:
    """Where modules are found; `""` is the working directory."""
    return [path or os.getcwd() for path in sys.path]
