"""Pools of processes that answer calls, with one interface for all ways of starting processes and of messages.

`InProcessPool` and `LocalPool` are for this machine; `RayPool` of `processes.ray` is for a cluster.
"""

from __future__ import annotations

import itertools
import pickle
import platform
import select
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from marl_sb3 import stacks
from marl_sb3.core.state.checkpoint import versions as package_versions
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.remote.processes.channel import Kind
from marl_sb3.extensions.remote.processes.fork_server import fork_server
from marl_sb3.extensions.remote.processes.messages import Failed, ProcessContext, by_value, packed_request
from marl_sb3.extensions.remote.processes.serve import Link
from marl_sb3.extensions.remote.processes.worker import Worker, WorkerLostError, stacks_of

_CLOSE_S = 5.0  # how long processes that owe no answer may take to close what they serve

Make = Callable[[Any], Any]  # makes what a process serves; another process can be given it


@dataclass(frozen=True)
class Lost:
    """What a pool answers in the place of a result if the process has ended or cannot be reached."""

    why: str  # in words


class ProcessPool(ABC):
    """Processes, each of which serves an object and does one thing after the other."""

    is_elsewhere = True  # whether the processes are others than this one

    def __init__(self) -> None:
        self._numbers = itertools.count()

    @abstractmethod
    def begin(self, argument: Any) -> int:
        """Begin to start a process, which makes its object of the argument; returns its number, which no other has.

        Its first answer is what `versions` of its object returns, or None: the versions of this process.

        Raises:
            ConfigError: the argument cannot be sent to another process.
        """

    @abstractmethod
    def send(self, process: int, method: str, *arguments: Any) -> None:
        """Ask a process that owes no answer to call a method of its object. It waits for nothing."""

    def share(self, value: Any) -> Any:
        """Return what stands for a value in the arguments of several messages, so that it is sent once."""
        return value

    @abstractmethod
    def poll(self, timeout_s: float) -> Sequence[tuple[int, Any]]:
        """Return the processes that have answered since the last call, each with its answer; wait if there are none.

        An answer is what the method returned, `Failed` or `Lost`.
        """

    @abstractmethod
    def end(self, process: int) -> None:
        """Kill a process. There will be no more answers from it."""

    @abstractmethod
    def close(self) -> None:
        """End all processes."""


class InProcessPool(ProcessPool):
    """A `ProcessPool` without other processes: the reference for all others.

    Args:
        make: makes what each "process" serves.
    """

    is_elsewhere = False

    def __init__(self, make: Make) -> None:
        super().__init__()
        self._make = make
        self._served: dict[int, Any] = {}
        self._messages: deque[tuple[int, str, tuple[Any, ...]]] = deque()

    def begin(self, argument: Any) -> int:
        """Make the object."""
        process = next(self._numbers)
        self._served[process] = self._make(argument)
        self.send(process, "versions")
        return process

    def send(self, process: int, method: str, *arguments: Any) -> None:
        """Keep the message until `poll`."""
        self._messages.append((process, method, arguments))

    def poll(self, timeout_s: float) -> Sequence[tuple[int, Any]]:
        """Work on the next message."""
        if not self._messages:
            return []
        process, method, arguments = self._messages.popleft()
        return [(process, self._result(process, method, arguments))]

    def _result(self, process: int, method: str, arguments: Sequence[Any]) -> Any:
        try:
            return getattr(self._served[process], method)(*arguments)
        except Exception as error:
            return Failed(error)

    def end(self, process: int) -> None:
        """Close the object."""
        self._served.pop(process).close()
        self._messages = deque(message for message in self._messages if message[0] != process)

    def close(self) -> None:
        """Close all objects."""
        for process in list(self._served):
            self.end(process)


class LocalPool(ProcessPool):
    """A `ProcessPool` of processes of this machine.

    Args:
        make: makes what each process serves.
        modules: that the fork server imports before it forks a process, separated by commas.
        name: of a process, for messages.
        timeout_s: how long a process may take to send an answer that has begun to arrive.

    Attributes:
        workers: number -> the process.
    """

    def __init__(self, make: Make, modules: str, name: str, timeout_s: float) -> None:
        super().__init__()
        self._make, self._starter, self._name, self._timeout_s = make, partial(fork_server, modules), name, timeout_s
        self._context = ProcessContext.here(imports=True)
        self.workers: dict[int, Worker] = {}
        self._refused: dict[int, str] = {}  # number -> why the process could not be started
        stacks.add_source(self.stacks)

    def begin(self, argument: Any) -> int:
        """Start a process."""
        try:
            packed = by_value((_made, (self._make, argument)))
        except Exception as error:
            raise unsendable(error) from error
        process = next(self._numbers)
        request = packed_request("make", (self._context, packed))
        worker = Worker(f"{self._name} {process}", self._starter, request, timeout_s=self._timeout_s)
        self.workers[process] = worker  # before the start, which may be interrupted
        try:
            worker.start()
        except WorkerLostError as error:
            self._refused[process] = error.how
        return process

    def send(self, process: int, method: str, *arguments: Any) -> None:
        """Send the message."""
        try:
            self.workers[process].send(Kind.REQUEST, packed_request(method, arguments))
        except BaseException:  # after an interrupt, nobody knows how much of the message was sent
            self.workers[process].end()
            raise

    def share(self, value: Any) -> Any:
        """Pickle the value, once."""
        return _Pickled(by_value(value))

    def poll(self, timeout_s: float) -> Sequence[tuple[int, Any]]:
        """Return answers that have arrived; if there are none, wait for one."""
        ready = [process for process, worker in self.workers.items() if not worker.is_healthy]
        if not ready:
            by_file = {worker.fileno(): process for process, worker in self.workers.items() if worker.is_busy}
            ready = [by_file[file] for file in select.select(list(by_file), [], [], timeout_s)[0]] if by_file else []
        return [(process, self._answer(process)) for process in ready]

    def _answer(self, process: int) -> Any:
        try:
            message = self.workers[process].receive()
        except WorkerLostError as error:
            return Lost(self._refused.pop(process, error.how))
        try:
            return Worker.result(message)
        except BaseException as error:
            return Failed(error)

    def stacks(self) -> list[str]:
        """Return what each process is doing, with its name."""
        return stacks_of(list(self.workers.values()))

    def end(self, process: int) -> None:
        """Kill a process."""
        self.workers.pop(process).free()

    def close(self) -> None:
        """Let processes that owe no answer close their objects, and end all."""
        until_s = time.monotonic() + _CLOSE_S
        idle = [worker for worker in self.workers.values() if worker.is_healthy and not worker.is_busy]
        for worker in idle:
            worker.send(Kind.REQUEST, packed_request("close", ()))
        for worker in idle:
            with suppress(WorkerLostError):
                worker.receive(until_s)
        for process in list(self.workers):
            self.end(process)


def _made(link: Link, make: Make, argument: Any) -> Any:
    """Make what a process serves: it needs no link."""
    return make(argument)


def unsendable(reason: BaseException) -> ConfigError:
    """Return the error for an argument of `ProcessPool.begin` that cannot be sent."""
    return ConfigError(
        f"the env or a policy cannot be sent to another process: {reason}; accepted: package.module:factory, "
        "or factories and classes that can be pickled",
        key="env",
    )


class _Pickled:
    """Stands for a value in a request; in the other process, it is the value."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._pickled,)


# --- Versions --------------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Return the versions that all processes of a training must have in common."""
    return {"Python": platform.python_version(), **package_versions()}


def differing(theirs: Mapping[str, str]) -> str | None:
    """Return in words which versions of another process are not those of this one; None if none."""
    differences = [
        f"{name} {theirs.get(name, 'none')} instead of {ours}"
        for name, ours in versions().items()
        if theirs.get(name) != ours
    ]
    return ", ".join(differences) or None
