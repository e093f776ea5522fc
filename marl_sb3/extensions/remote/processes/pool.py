"""Pools: processes that work on their messages in order, whatever starts them and carries the messages.

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
from marl_sb3.core.state import versions as package_versions
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


@dataclass(frozen=True)
class Answer:
    """The answer to a message."""

    process: int  # that was asked
    ticket: int  # from `Pool.send`
    result: Any  # what the method returned, `Lost` or `Failed`


class Pool(ABC):
    """Processes, each of which serves an object."""

    is_elsewhere = True  # whether the processes are others than this one

    def __init__(self) -> None:
        self._numbers, self._tickets = itertools.count(), itertools.count()

    @abstractmethod
    def begin(self, argument: Any) -> int:
        """Begin to start a process, which makes its object of the argument; returns its number, which no other has.

        Messages are kept until the process runs.

        Raises:
            ConfigError: the argument cannot be sent to another process.
        """

    @abstractmethod
    def send(self, process: int, method: str, *arguments: Any) -> int:
        """Ask a process to call a method of its object; returns the ticket of the answer. It waits for nothing."""

    def share(self, value: Any) -> Any:
        """Return what stands for a value in the arguments of several messages, so that it is sent once."""
        return value

    @abstractmethod
    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return answers that have arrived since the last call; if there are none, wait for one."""

    @abstractmethod
    def end(self, process: int) -> None:
        """Kill a process. There will be no more answers from it."""

    @abstractmethod
    def close(self) -> None:
        """End all processes."""


class InProcessPool(Pool):
    """A `Pool` without other processes: the reference for all others.

    Args:
        make: makes what each "process" serves.
    """

    is_elsewhere = False

    def __init__(self, make: Make) -> None:
        super().__init__()
        self._make = make
        self._served: dict[int, Any] = {}
        self._messages: deque[tuple[int, int, str, tuple[Any, ...]]] = deque()

    def begin(self, argument: Any) -> int:
        """Make the object."""
        process = next(self._numbers)
        self._served[process] = self._make(argument)
        return process

    def send(self, process: int, method: str, *arguments: Any) -> int:
        """Keep the message until `poll`."""
        ticket = next(self._tickets)
        self._messages.append((process, ticket, method, arguments))
        return ticket

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Work on the next message."""
        if not self._messages:
            return []
        process, ticket, method, arguments = self._messages.popleft()
        return [Answer(process, ticket, self._result(process, method, arguments))]

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


class _Member:
    """A process of a `LocalPool`."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker  # the process
        # ticket and payload of messages; the first was sent. The request to make the object has the ticket None.
        self.waiting: deque[tuple[int | None, bytes]] = deque([(None, worker.make)])
        # the answer to all further messages, if the process has ended or could not make its object
        self.broken: Lost | Failed | None = None

    def send_next(self) -> None:
        """Send the first message."""
        try:
            self.worker.send(Kind.REQUEST, self.waiting[0][1])
        except BaseException:  # after an interrupt, nobody knows how much of the message was sent
            self.worker.end()
            raise

    def answer(self) -> tuple[int | None, Any]:
        """Return the ticket of the first message, and the answer, which has arrived."""
        result = self.broken or self._received()
        ticket, _ = self.waiting.popleft()
        if isinstance(result, Lost) or (ticket is None and isinstance(result, Failed)):
            self.broken = result
        elif self.waiting:
            self.send_next()
        return ticket, result

    def _received(self) -> Any:
        try:
            message = self.worker.receive()
        except WorkerLostError as error:
            return Lost(error.how)
        try:
            return Worker.result(message)
        except BaseException as error:
            return Failed(error)


class LocalPool(Pool):
    """A `Pool` of processes of this machine.

    Args:
        make: makes what each process serves.
        modules: that the fork server imports before it forks a process, separated by commas.
        name: of a process, for messages.
        timeout_s: how long a process may take to send an answer that has begun to arrive.
    """

    def __init__(self, make: Make, modules: str, name: str, timeout_s: float) -> None:
        super().__init__()
        self._make, self._modules, self._name, self._timeout_s = make, modules, name, timeout_s
        self._context = ProcessContext.here(imports=True)
        self._members: dict[int, _Member] = {}
        stacks.add_source(self.stacks)

    def begin(self, argument: Any) -> int:
        """Start a process."""
        try:
            packed = by_value((_made, (self._make, argument)))
        except Exception as error:
            raise unsendable(error) from error
        process = next(self._numbers)
        starter, request = partial(fork_server, self._modules), packed_request("make", (self._context, packed))
        worker = Worker(f"{self._name} {process}", starter, request, timeout_s=self._timeout_s)
        self._members[process] = member = _Member(worker)  # before the start, which may be interrupted
        try:
            worker.start()
        except WorkerLostError as error:
            member.broken = Lost(error.how)
        return process

    def send(self, process: int, method: str, *arguments: Any) -> int:
        """Send the message as soon as those before it are answered.

        A process that has not read a large message while this one does not read its large answer would wait for ever.
        """
        member, ticket = self._members[process], next(self._tickets)
        member.waiting.append((ticket, packed_request(method, arguments)))
        if len(member.waiting) == 1 and not member.broken:
            member.send_next()
        return ticket

    def share(self, value: Any) -> Any:
        """Pickle the value, once."""
        return _Pickled(by_value(value))

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return answers that have arrived; if there are none, wait for one."""
        asked = {process: member for process, member in self._members.items() if member.waiting}
        if not asked:
            return []
        ready = [process for process, member in asked.items() if member.broken or member.worker.fileno() < 0]
        if not ready:
            by_file = {member.worker.fileno(): process for process, member in asked.items()}
            ready = [by_file[file] for file in select.select(list(by_file), [], [], timeout_s)[0]]
        answers = [(process, *asked[process].answer()) for process in ready]
        return [Answer(process, ticket, result) for process, ticket, result in answers if ticket is not None]

    def stacks(self) -> list[str]:
        """Return what each process is doing, with its name."""
        return stacks_of([member.worker for member in self._members.values()])

    def end(self, process: int) -> None:
        """Kill a process."""
        self._members.pop(process).worker.free()

    def close(self) -> None:
        """Let processes that owe no answer close their objects, and end all."""
        until_s = time.monotonic() + _CLOSE_S
        idle = [each.worker for each in self._members.values() if not (each.waiting or each.broken)]
        for worker in idle:
            worker.send(Kind.REQUEST, packed_request("close", ()))
        for worker in idle:
            with suppress(WorkerLostError):
                worker.receive(until_s)
        for process in list(self._members):
            self.end(process)


def _made(link: Link, make: Make, argument: Any) -> Any:
    """Make what a process serves: it needs no link."""
    return make(argument)


def unsendable(reason: BaseException) -> ConfigError:
    """Return the error for an argument of `Pool.begin` that cannot be sent."""
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
    found = [
        f"{name} {theirs.get(name, 'none')} instead of {own}"
        for name, own in versions().items()
        if theirs.get(name) != own
    ]
    return ", ".join(found) or None
