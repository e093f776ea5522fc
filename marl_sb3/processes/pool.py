"""Pools: processes that work on their messages in order, whatever starts them and carries the messages.

`InProcessPool` and `LocalPool` are for this machine; `RayPool` of `processes.ray` is for a cluster.
"""

from __future__ import annotations

import itertools
import pickle
import platform
import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from marl_sb3 import stacks
from marl_sb3.errors import ConfigError
from marl_sb3.processes.channel import Kind
from marl_sb3.processes.fork_server import fork_server
from marl_sb3.processes.messages import ProcessContext, by_value, packed_request
from marl_sb3.processes.serve import Link
from marl_sb3.processes.worker import Worker, WorkerLostError
from marl_sb3.storage.checkpoint_format import versions as package_versions

_CLOSE_S = 5.0  # how long processes that owe no answer may take to close what they serve

Make = Callable[[Any], Any]  # makes what a process serves; another process can be given it


@dataclass(frozen=True)
class Lost:
    """What a pool answers in the place of a result if the process has ended or cannot be reached.

    Attributes:
        why: in words.
    """

    why: str


@dataclass(frozen=True)
class Failed:
    """What a pool answers in the place of a result if the method raised an exception.

    Attributes:
        error: with the traceback in the other process as its cause.
    """

    error: BaseException


@dataclass(frozen=True)
class Answer:
    """The answer to a message.

    Attributes:
        process: that was asked.
        ticket: from `Pool.send`.
        result: what the method returned, `Lost` or `Failed`.
    """

    process: int
    ticket: int
    result: Any


class Pool(Protocol):
    """Processes, each of which serves an object.

    Attributes:
        is_elsewhere: whether the processes are others than this one.
    """

    is_elsewhere: bool

    def begin(self, argument: Any) -> int:
        """Begin to start a process, which makes its object of the argument; returns its number, which no other has.

        Messages are kept until the process runs.

        Raises:
            ConfigError: the argument cannot be sent to another process.
        """

    def send(self, process: int, method: str, *arguments: Any) -> int:
        """Ask a process to call a method of its object; returns the ticket of the answer. It waits for nothing."""

    def share(self, value: Any) -> Any:
        """Return what stands for a value in the arguments of several messages, so that it is sent once."""

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """Return answers that have arrived since the last call; if there are none, wait for one."""

    def end(self, process: int) -> None:
        """Kill a process. There will be no more answers from it."""

    def close(self) -> None:
        """End all processes."""


class InProcessPool:
    """A `Pool` without other processes: the reference for all others.

    Args:
        make: makes what each "process" serves.
    """

    is_elsewhere = False

    def __init__(self, make: Make) -> None:
        self._make = make
        self._served: dict[int, Any] = {}
        self._numbers, self._tickets = itertools.count(), itertools.count()
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

    def share(self, value: Any) -> Any:
        """Return the value itself."""
        return value

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


@dataclass
class _Member:
    """A process of a `LocalPool`.

    Attributes:
        worker: the process.
        waiting: ticket and payload of messages; the first has been sent if the worker has made its object.
        is_made: whether it has.
        broken: the answer to all messages, if it could not be started.
    """

    worker: Worker
    waiting: deque[tuple[int, bytes]] = field(default_factory=deque)
    is_made: bool = False
    broken: Lost | Failed | None = None


class LocalPool:
    """A `Pool` of processes of this machine.

    Args:
        make: makes what each process serves.
        modules: that the fork server imports before it forks a process, separated by commas.
        name: of a process, for messages.
        timeout_s: how long a process may take to send an answer that has begun to arrive.
    """

    is_elsewhere = True

    def __init__(self, make: Make, modules: str, name: str, timeout_s: float) -> None:
        self._make, self._modules, self._name, self._timeout_s = make, modules, name, timeout_s
        self._context = ProcessContext.here(imports=True)
        self._request: bytes | None = None  # it is the same for all processes
        self._members: dict[int, _Member] = {}
        self._numbers, self._tickets = itertools.count(), itertools.count()
        stacks.add_source(self.stacks)

    def begin(self, argument: Any) -> int:
        """Start a process."""
        if self._request is None:
            self._request = packed_request("make", (self._context, _packed(self._make, argument)))
        process = next(self._numbers)
        starter = partial(fork_server, self._modules)
        worker = Worker(f"{self._name} {process}", starter, self._request, timeout_s=self._timeout_s)
        self._members[process] = member = _Member(worker)
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
        if len(member.waiting) == 1 and member.is_made:
            self._send_next(member)
        return ticket

    def _send_next(self, member: _Member) -> None:
        try:
            member.worker.send(Kind.REQUEST, member.waiting[0][1])
        except BaseException:  # after an interrupt, nobody knows how much of the message was sent
            member.worker.end()
            raise

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
        answers = [self._answer(process, asked[process]) for process in ready]
        return [answer for answer in answers if answer is not None]

    def _answer(self, process: int, member: _Member) -> Answer | None:
        """Return the answer that a process has sent; None if it says that it has made its object."""
        result = member.broken or self._result(member.worker)
        if not member.is_made and not isinstance(result, (Lost, Failed)):
            member.is_made = True
            self._send_next(member)
            return None
        if not member.is_made:
            member.broken = result
        ticket, _ = member.waiting.popleft()
        if member.waiting and not isinstance(result, Lost):
            self._send_next(member)
        return Answer(process, ticket, result)

    @staticmethod
    def _result(worker: Worker) -> Any:
        try:
            message = worker.receive()
        except WorkerLostError as error:
            return Lost(error.how)
        try:
            return Worker.result(message)
        except BaseException as error:
            return Failed(error)

    def stacks(self) -> list[str]:
        """Return what each process is doing, with its name."""
        running = [member.worker for member in self._members.values() if member.worker.is_healthy]
        for worker in running:
            worker.write_stacks()
        return [f"{worker.name}:\n{worker.stacks()}" for worker in running]

    def end(self, process: int) -> None:
        """Kill a process."""
        self._members.pop(process).worker.free()

    def close(self) -> None:
        """Let processes that owe no answer close their objects, and end all."""
        until_s = time.monotonic() + _CLOSE_S
        idle = [each.worker for each in self._members.values() if each.is_made and not each.waiting]
        for worker in idle:
            worker.send(Kind.REQUEST, packed_request("close", ()))
        for worker in idle:
            try:
                worker.receive(until_s)
            except WorkerLostError:
                continue
        for process in list(self._members):
            self.end(process)


def _made(link: Link, make: Make, argument: Any) -> Any:
    """Make what a process serves: it needs no link."""
    return make(argument)


def _packed(make: Make, argument: Any) -> bytes:
    try:
        return by_value((_made, (make, argument)))
    except Exception as error:
        raise unsendable(error) from error


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
