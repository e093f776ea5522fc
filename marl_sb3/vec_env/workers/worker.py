"""A worker, as the main process sees it."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import time
from contextlib import suppress
from typing import Any

from marl_sb3.vec_env.workers.arrays import Board, anonymous_file
from marl_sb3.vec_env.workers.channel import Channel, ChannelClosedError, Kind, Message
from marl_sb3.vec_env.workers.division import polling_s
from marl_sb3.vec_env.workers.fork_server import ForkServer, ForkServerEndedError, fork_server
from marl_sb3.vec_env.workers.pickling import packed_request, unpacked_error
from marl_sb3.vec_env.workers.plan import SharePlan
from marl_sb3.vec_env.workers.worker_log import pass_on

_log = logging.getLogger(__name__)

_START_S = 10.0  # shortest time that a worker has until it has made its envs
_LOOK_S = 1.0  # longest time between two looks at a worker that has not answered
_STACKS_S = 2.0  # longest time that writing the stacks of a worker may take
_POLL_S = 0.02


class WorkerLostError(Exception):
    """A worker has ended, or has hung and was killed; the message says how.

    Attributes:
        stacks: what its threads were doing; empty if it has not said.
    """

    def __init__(self, message: str, stacks: str = "") -> None:
        super().__init__(message)
        self.stacks = stacks


class WorkerRefusedError(WorkerLostError):
    """The system refuses another process or another open file."""


class Worker:
    """The process that steps a share of the envs.

    Args:
        plan: of its share.
        memory: descriptor of the shared memory.
        board: its board in the shared memory.
        timeout_s: how long a call of an env may take.

    Attributes:
        losses: how often it was lost since it last answered.
    """

    def __init__(self, plan: SharePlan, memory: int, board: Board, timeout_s: float) -> None:
        self.plan = plan
        self.losses = 0
        self._memory = memory
        self._board = board
        self._timeout_s = timeout_s
        self._look_s = min(timeout_s / 4, _LOOK_S)
        self._patience_s = timeout_s  # without progress, before the worker counts as hung
        self._number = self._answered = 0  # of the latest request, and of the latest that was answered
        self._stacks = -1
        self._stacks_end = 0
        self._channel: Channel | None = None
        self._fork_server: ForkServer | None = None
        self._process = 0

    @property
    def is_healthy(self) -> bool:
        """Whether it runs, as far as is known."""
        return self._process != 0

    @property
    def is_busy(self) -> bool:
        """Whether it was sent a request that it has not answered."""
        return self._answered != self._number

    def name(self) -> str:
        """The worker and its envs, for messages."""
        return f"worker {self.plan.worker} ({self.plan.envs_text()})"

    def start(self) -> None:
        """Start the process.

        Raises:
            WorkerLostError: it cannot be started.
        """
        try:
            self._start()
        except ForkServerEndedError:
            raise self._lost("could not be started: the process that starts workers has ended") from None
        except OSError as error:
            self.end()
            raise WorkerRefusedError(f"{self.name()} could not be started: {error.strerror}") from error
        _log.debug("%s: started, process %d", self.name(), self._process)

    def _start(self) -> None:
        self._new_stacks_file()
        self._patience_s = max(self._timeout_s, _START_S)
        ours, theirs = socket.socketpair()
        with theirs:
            self._channel = Channel(ours, self._timeout_s, self._look_s, polling_s(self.plan.n_workers))
            self._fork_server = fork_server()
            self._process = self._fork_server.start((theirs.fileno(), self._memory, self._stacks))

    # --- Requests ----------------------------------------------------------------------------------------------------

    def ask(self, name: str, *arguments: Any) -> Any:
        """Do a request and return its result; see `ShareServer`."""
        self.send(Kind.REQUEST, packed_request(name, arguments))
        return self.result(self.receive())

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a request; if the worker has ended, `receive` says so."""
        self._number += 1
        self._progress, self._waited_s = self._board.progress, 0.0
        if self._channel is not None:
            try:  # noqa: SIM105 - takes half a microsecond less than `suppress`
                self._channel.send(kind, self._number, payload)
            except (ChannelClosedError, TimeoutError):
                pass

    def receive(self, until_s: float | None = None) -> Message:
        """Return the answer to the latest request.

        Args:
            until_s: the monotonic time until which it may take; None: as long as calls of envs are completed.

        Raises:
            WorkerLostError: the worker has ended, or an env has not answered in time.
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
                self._require_progress()
            else:
                if message.number == self._number:  # otherwise the answer to a request that was given up
                    self._patience_s, self._answered = self._timeout_s, self._number
                    return message

    def _require_progress(self) -> None:
        """Kill the worker if no call of an env was completed for so long.

        The looks are counted, and not the time: while the whole machine was asleep, the worker was, too.
        """
        self._waited_s += self._look_s
        if self._board.progress != self._progress:
            self._progress, self._waited_s = self._board.progress, 0.0
        if self._waited_s >= self._patience_s:
            raise self._hung(f"within {self._patience_s:g} s (worker_timeout_s)")

    def _hung(self, when: str) -> WorkerLostError:
        self.write_stacks()
        self.stacks()
        return self._lost(f"has hung: env {self._board.env_index} has not answered {when}")

    @staticmethod
    def result(message: Message) -> Any:
        """Return the result in an answer to a request, and log what came with it.

        Raises:
            BaseException: the worker has answered with one.
        """
        value, messages = pickle.loads(message.payload)
        pass_on(messages)
        if message.kind == Kind.FAILED:
            raise unpacked_error(value)
        return value

    # --- Stacks ------------------------------------------------------------------------------------------------------

    def _new_stacks_file(self) -> None:
        if self._stacks >= 0:
            os.close(self._stacks)
        self._stacks = anonymous_file("marl_sb3-stacks")

    def write_stacks(self) -> None:
        """Have the worker write what its threads are doing; `stacks` returns it."""
        self._stacks_end = os.fstat(self._stacks).st_size
        with suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGUSR1)

    def stacks(self) -> str:
        """Return what the threads of the worker are doing, after `write_stacks`; empty if it does not say."""
        until_s = time.monotonic() + _STACKS_S
        before, size = self._stacks_end, self._stacks_end
        while time.monotonic() < until_s:
            latest = os.fstat(self._stacks).st_size
            if latest > before and latest == size:
                break
            size = latest
            time.sleep(_POLL_S)
        return self._written(before)

    def _written(self, start: int = 0) -> str:
        if self._stacks < 0:
            return ""
        size = os.fstat(self._stacks).st_size
        return os.pread(self._stacks, size - start, start).decode(errors="replace")

    # --- Its end -----------------------------------------------------------------------------------------------------

    def _lost(self, how: str | None = None) -> WorkerLostError:
        """End the process; returns the error that says how it ended."""
        code = self.end()
        words = how or f"has ended: {_ending(code)}, in env {self._board.env_index}"
        return WorkerLostError(f"{self.name()} {words}", self._written())

    def end(self) -> int | None:
        """Kill the process if it runs.

        Returns:
            Its exit code, negative for a signal; None if the fork server has ended, and the worker with it.
        """
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        code = None
        if self._process and self._fork_server is not None:
            with suppress(ForkServerEndedError):
                code = self._fork_server.end(self._process)
            _log.debug("%s: process %d ended: %s", self.name(), self._process, _ending(code))
        self._process = 0
        return code

    def free(self) -> None:
        """End the process, and free what the main process keeps for it."""
        self.end()
        if self._stacks >= 0:
            os.close(self._stacks)
            self._stacks = -1


def _ending(code: int | None) -> str:
    if code is None:
        return "the process that starts workers was killed"
    if code >= 0:
        return f"exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"signal {names.get(-code, -code)}"
