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
from marl_sb3.vec_env.workers.nursery import Nursery, NurseryEndedError, nursery
from marl_sb3.vec_env.workers.plan import SharePlan
from marl_sb3.vec_env.workers.process import WorkerPlace
from marl_sb3.vec_env.workers.remote_errors import unpacked_error
from marl_sb3.vec_env.workers.worker_log import pass_on

_log = logging.getLogger(__name__)

_START_S = 10.0  # shortest time that a worker has until it has made its envs
_STACKS_S = 2.0  # longest time that writing the stacks of a worker may take
_POLL_S = 0.02


class WorkerLostError(Exception):
    """A worker has ended, or has hung and was killed; the message says how.

    Attributes:
        stacks: what its threads were doing, as far as it could say.
    """

    def __init__(self, words: str, stacks: str) -> None:
        super().__init__(words)
        self.stacks = stacks


class Worker:
    """The process that steps a share of the envs.

    Args:
        place: of the worker.
        plan: of its share.
        memory: descriptor of the shared memory.
        timeout_s: how long a call of an env may take.

    Attributes:
        losses: how often it was lost since it last answered.
    """

    def __init__(self, place: WorkerPlace, plan: SharePlan, memory: int, timeout_s: float) -> None:
        self.place = place
        self.plan = plan
        self.losses = 0
        self._memory = memory
        self._timeout_s = timeout_s
        self._board = Board(memory, place.n_workers, place.worker)
        self._number = 0
        self._stacks = anonymous_file("marl_sb3-stacks")
        self._channel: Channel | None = None
        self._nursery: Nursery | None = None
        self._process = 0
        self._patient_until_s = 0.0

    @property
    def is_healthy(self) -> bool:
        """Whether it runs, as far as is known."""
        return self._channel is not None

    def words(self) -> str:
        """The worker, for messages."""
        return f"worker {self.place.worker} ({self.plan.words()})"

    def start(self) -> None:
        """Start the process."""
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, self._timeout_s)
        self._patient_until_s = time.monotonic() + _START_S
        os.ftruncate(self._stacks, 0)
        os.lseek(self._stacks, 0, os.SEEK_SET)
        with theirs:
            try:
                self._nursery = nursery()
                self._process = self._nursery.start(self.place, (theirs.fileno(), self._memory, self._stacks))
            except NurseryEndedError:
                raise self._lost("could not be started: the process that starts workers has ended") from None
        _log.debug("%s: started, process %d", self.words(), self._process)

    # --- Requests ----------------------------------------------------------------------------------------------------

    def ask(self, name: str, *arguments: Any) -> Any:
        """Do a request and return its result; see `ShareServer`."""
        self.send(Kind.REQUEST, pickle.dumps((name, arguments)))
        return self.result(self.receive())

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a request; if the worker has ended, `receive` says so."""
        self._number += 1
        self._progress = self._board.progress
        if self._channel is not None:
            with suppress(ChannelClosedError, TimeoutError):
                self._channel.send(kind, self._number, payload)

    def receive(self) -> Message:
        """Return the answer to the latest request.

        Raises:
            WorkerLostError: the worker has ended, or an env has not answered in time.
        """
        if self._channel is None:
            raise self._lost("had ended")
        while True:
            try:
                message = self._channel.receive()
            except ChannelClosedError:
                raise self._lost() from None
            except TimeoutError:
                if self._board.progress == self._progress and time.monotonic() > self._patient_until_s:
                    raise self._hung() from None
                self._progress = self._board.progress
                continue
            if message.number == self._number:  # otherwise the answer to a request that was given up
                self._patient_until_s = 0.0
                return message

    @staticmethod
    def result(message: Message) -> Any:
        """Return the result in an answer to a request, and log what came with it.

        Raises:
            Exception: the worker has answered with one.
        """
        value, messages = pickle.loads(message.payload)
        pass_on(messages)
        if message.kind == Kind.FAILED:
            raise unpacked_error(value)
        return value

    # --- Its end -----------------------------------------------------------------------------------------------------

    def stacks(self) -> str:
        """Return what the threads of the worker are doing; empty if it does not say."""
        before = os.fstat(self._stacks).st_size
        try:
            os.kill(self._process, signal.SIGUSR1)
        except ProcessLookupError:
            return ""
        until = time.monotonic() + _STACKS_S
        size = before
        while time.monotonic() < until:
            time.sleep(_POLL_S)
            latest = os.fstat(self._stacks).st_size
            if latest > before and latest == size:
                break
            size = latest
        return self._written(before)

    def _written(self, start: int = 0) -> str:
        size = os.fstat(self._stacks).st_size
        return os.pread(self._stacks, size - start, start).decode(errors="replace")

    def _hung(self) -> WorkerLostError:
        index = self._board.env_index
        self.stacks()
        return self._lost(f"has hung: env {index} has not answered within {self._timeout_s:g} s (worker_timeout_s)")

    def _lost(self, how: str | None = None) -> WorkerLostError:
        """End the process; returns the error that says how it ended."""
        code = self.end()
        words = how or f"has ended: {_ending(code)}, in env {self._board.env_index}"
        return WorkerLostError(f"{self.words()} {words}", self._written())

    def end(self) -> int:
        """Kill the process if it runs; returns its exit code, negative for a signal."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        code = 0
        if self._process and self._nursery is not None:
            with suppress(NurseryEndedError):
                code = self._nursery.end(self._process)
            _log.debug("%s: process %d ended: %s", self.words(), self._process, _ending(code))
        self._process = 0
        return code

    def free(self) -> None:
        """End the process, and free what the main process keeps for it."""
        self.end()
        if self._stacks >= 0:
            os.close(self._stacks)
            self._stacks = -1


def _ending(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"
