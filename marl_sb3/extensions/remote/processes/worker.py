"""A worker as the main process sees it: it starts the process, notices when it ends, and replaces it."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

from marl_sb3.extensions.remote.processes.channel import (
    AT_REST,
    IN_CALL,
    PAGE,
    Channel,
    ChannelClosedError,
    Heartbeat,
    Kind,
    Message,
    status_file,
)
from marl_sb3.extensions.remote.processes.fork_server import Forker, ForkServer, ForkServerEndedError
from marl_sb3.extensions.remote.processes.messages import Failed, packed_request, pass_on

_log = logging.getLogger(__name__)

_START_S = 10.0  # shortest time that a worker has until it has made what it serves
_STACKS_S = 2.0  # longest time that writing the stacks of a worker may take
_POLL_S = 0.02


class WorkerLostError(Exception):
    """A worker has ended, or has hung and was killed; the message says how.

    Attributes:
        how: the message without the name of the worker.
        stacks: what its threads were doing; empty if it has not said.
        code: its exit code, negative for a signal; None if it is not known.
        has_hung: whether it did not answer, and was killed.
    """

    def __init__(
        self, name: str, how: str, stacks: str = "", code: int | None = None, *, has_hung: bool = False
    ) -> None:
        super().__init__(f"{name} {how}")
        self.how, self.stacks, self.code, self.has_hung = how, stacks, code, has_hung


class WorkerRefusedError(WorkerLostError):
    """The system refuses another process or another open file."""


class RestartBudget:
    """Counts how often in a row something was lost.

    Args:
        most: how often that may happen.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._losses: Counter[Hashable] = Counter()

    def lost(self, what: Hashable = None) -> int:
        """Note a loss; returns how many there were in a row if these are too many, and otherwise 0."""
        self._losses[what] += 1
        return self._losses[what] if self._losses[what] > self.most else 0

    def is_spent(self, what: Hashable = None) -> bool:
        """Whether there were too many losses in a row."""
        return self._losses[what] > self.most

    def succeeded(self, what: Hashable = None) -> None:
        """Note that it has done its work: losses are counted anew."""
        if self._losses:
            self._losses.pop(what, None)


class Worker:
    """A process that serves an object: `make` is called there, and then the object's methods.

    Args:
        name: of the worker, for messages.
        starter: returns what forks the process.
        make: the request that is sent first whenever the process starts; see `serve`.
        timeout_s: how long it may work on a request without any progress of its heartbeat.
        look_s: longest time between two looks at a worker that has not answered.
        descriptors: open files that the worker gets; they stay open here.
        polling_s: see `Channel`.

    Attributes:
        name: as given.
        make: as given.
        heartbeat: of the process that was started last.
        process: its process id; 0 if it has ended, as far as is known.
    """

    def __init__(
        self,
        name: str,
        starter: Callable[[], ForkServer | Forker],
        make: bytes,
        *,
        timeout_s: float,
        look_s: float = 1.0,
        descriptors: Sequence[int] = (),
        polling_s: float = 0.0,
    ) -> None:
        self.name, self.make = name, make
        self._starter, self._descriptors = starter, descriptors
        self._timeout_s, self._polling_s = timeout_s, polling_s
        self._look_s, self._stacks_s = min(timeout_s / 4, look_s), min(timeout_s, _STACKS_S)
        self._patience_s = timeout_s  # without progress, before the worker counts as hung
        self._number = self._answered = 0  # of the latest request, and of the latest that was answered
        self._status = -1
        self._stacks_end = PAGE
        self._channel: Channel | None = None
        self._fork_server: ForkServer | Forker | None = None
        self.process = 0

    @property
    def is_healthy(self) -> bool:
        """Whether it runs, as far as is known."""
        return self.process != 0

    @property
    def is_busy(self) -> bool:
        """Whether it was sent a request that it has not answered."""
        return self._answered != self._number

    def fileno(self) -> int:
        """The descriptor of the connection, for `select`; -1 if it has ended."""
        return -1 if self._channel is None else self._channel.fileno()

    def start(self) -> None:
        """Start the process, and have it make what it serves; `receive` returns the answer to that.

        Raises:
            WorkerLostError: it cannot be started.
        """
        self.free()
        self._patience_s = max(self._timeout_s, _START_S)
        try:
            self._status = status_file()
            self.heartbeat = Heartbeat(self._status)
            ours, theirs = socket.socketpair()
            with theirs:
                self._channel = Channel(ours, self._timeout_s, self._look_s, self._polling_s)
                self._fork_server = self._starter()
                self.process = self._fork_server.start((theirs.fileno(), self._status, *self._descriptors))
        except ForkServerEndedError:
            raise self._lost("could not be started: the process that starts workers has ended") from None
        except OSError as error:
            self.end()
            raise WorkerRefusedError(self.name, f"could not be started: {error.strerror}") from error
        _log.debug("%s: started, process %d", self.name, self.process)
        self.send(Kind.REQUEST, self.make)

    # --- Requests ----------------------------------------------------------------------------------------------------

    def ask(self, name: str, *arguments: Any, **calls: Any) -> Any:
        """Call a method of what the worker serves; returns the result. The calls are those of `receive`."""
        self.send(Kind.REQUEST, packed_request(name, arguments))
        return self.result(self.receive(**calls))

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a request; if the worker has ended, `receive` says so."""
        self._number += 1
        self._waited_s = 0.0
        if self._channel is not None:
            self._progress = self.heartbeat.progress
            try:  # noqa: SIM105 - takes half a microsecond less than `suppress`
                self._channel.send(kind, self._number, payload)
            except (ChannelClosedError, TimeoutError):
                pass

    def receive(
        self,
        until_s: float | None = None,
        on_news: Callable[[Any], None] | None = None,
        on_look: Callable[[], None] | None = None,
    ) -> Message:
        """Return the answer to the latest request.

        Args:
            until_s: the monotonic time until which it may take; None: as long as there is progress.
            on_news: called with the values that the worker tells before it answers.
            on_look: called whenever it has not answered for a while.

        Raises:
            WorkerLostError: the worker has ended, or has made no progress for too long.
        """
        if self._channel is None:
            raise self._lost("had ended")
        while True:
            try:
                if until_s is not None and not self._channel.has_data(until_s - time.monotonic()):
                    raise self._hung("after an interrupt")
                message = self._channel.receive()
            except ChannelClosedError:
                raise self._lost() from None
            except TimeoutError:
                if on_look is not None:
                    on_look()
                self._require_progress()
            else:
                if message.number != self._number:
                    continue  # it belongs to a request that was given up
                if message.kind != Kind.NEWS:
                    self._patience_s, self._answered = self._timeout_s, self._number
                    return message
                if on_news is not None:
                    on_news(pickle.loads(message.payload))

    def _require_progress(self) -> None:
        """Kill the worker if its heartbeat shows no progress for so long.

        The looks are counted, and not the time: while the whole machine was asleep, the worker was, too.
        """
        self._waited_s += self._look_s
        if self.heartbeat.progress != self._progress or self.heartbeat.call == AT_REST:
            self._progress, self._waited_s = self.heartbeat.progress, 0.0
        patience_s = self._timeout_s if self.heartbeat.call == IN_CALL else self._patience_s
        if self._waited_s >= patience_s:
            raise self._hung(f"within {patience_s:g} s (worker_timeout_s)")

    def _hung(self, when: str) -> WorkerLostError:
        stacks_of([self])
        return self._lost(f"has hung: {self.heartbeat.env or 'it'} has not answered {when}", has_hung=True)

    @staticmethod
    def result(message: Message) -> Any:
        """Return the result in an answer to a request, and log what came with it.

        Raises:
            BaseException: the worker has answered with one.
        """
        value, messages = pickle.loads(message.payload)
        pass_on(messages)
        if isinstance(value, Failed):
            raise value.error
        return value

    # --- Stacks ------------------------------------------------------------------------------------------------------

    def request_stacks(self) -> None:
        """Have the worker write what its threads are doing; `written_stacks` returns it."""
        self._stacks_end = os.fstat(self._status).st_size
        self.send_signal(signal.SIGUSR1)

    def written_stacks(self) -> str:
        """Return what the worker writes after `request_stacks`; empty if it does not."""
        until_s = time.monotonic() + self._stacks_s
        before, size = self._stacks_end, self._stacks_end
        while time.monotonic() < until_s:
            latest = os.fstat(self._status).st_size
            if latest > before and latest == size:
                break
            size = latest
            time.sleep(_POLL_S)
        return self._written(before)

    def _written(self, start: int = PAGE) -> str:
        if self._status < 0:
            return ""
        size = os.fstat(self._status).st_size
        return os.pread(self._status, max(0, size - start), start).decode(errors="replace")

    # --- Its end -----------------------------------------------------------------------------------------------------

    def send_signal(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        if self.process:
            with suppress(ProcessLookupError):
                os.kill(self.process, number)

    def _lost(self, how: str = "", *, has_hung: bool = False) -> WorkerLostError:
        """End the process; returns the error that says how it ended."""
        code = self.end()
        if not how:
            where = f", in {self.heartbeat.env}" if self.heartbeat.env else ""
            how = f"has ended: {ending(code)}{where}"
        return WorkerLostError(self.name, how, self._written(), code, has_hung=has_hung)

    def end(self) -> int | None:
        """Kill the process if it runs.

        Returns:
            Its exit code, negative for a signal; None if the fork server has ended, and the worker with it.
        """
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        code = None
        if self.process and self._fork_server is not None:
            with suppress(ForkServerEndedError):
                code = self._fork_server.end(self.process)
            _log.debug("%s: process %d ended: %s", self.name, self.process, ending(code))
        self.process = 0
        return code

    def free(self) -> None:
        """End the process, and free what the main process keeps for it."""
        self.end()
        if self._status >= 0:
            os.close(self._status)
            self._status = -1


def stacks_of(workers: Sequence[Worker]) -> list[str]:
    """Return what the threads of each worker that runs are doing, with its name."""
    running = [worker for worker in workers if worker.is_healthy]
    for worker in running:
        worker.request_stacks()
    return [f"{worker.name}:\n{worker.written_stacks()}" for worker in running]


def ending(code: int | None) -> str:
    """Return in words how a worker ended.

    Args:
        code: from `Worker.end`.
    """
    if code is None:
        return "the process that starts workers was killed"
    if code >= 0:
        return f"exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"signal {names.get(-code, -code)}"
