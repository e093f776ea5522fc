"""Talk to all workers of a vec env, and replace those that end or hang."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from marl_sb3.errors import ConfigError, VecEnvOrderError, WorkerError
from marl_sb3.extensions.remote.processes.channel import Kind, Message, anonymous_file
from marl_sb3.extensions.remote.processes.fork_server import fork_server
from marl_sb3.extensions.remote.processes.messages import ProcessContext, WorkerTracebackError, by_value, packed_request
from marl_sb3.extensions.remote.processes.worker import (
    RestartBudget,
    Worker,
    WorkerLostError,
    WorkerRefusedError,
    stacks_of,
)
from marl_sb3.extensions.remote.workers.recovery import Journal
from marl_sb3.extensions.remote.workers.server import EnvServer, Facts, FirstEnvMadeError
from marl_sb3.extensions.remote.workers.spec import WorkerSpec, polling_s

_log = logging.getLogger(__name__)

_INTERRUPTED_S = 5.0  # how long envs that were interrupted may take to answer and to close, at most

Request = tuple[int, bytes]  # kind and payload of a message to a worker
_STEP: Request = (Kind.STEP, b"")


class Supervisor:
    """All workers of a vec env.

    Args:
        specs: of the workers.
        timeout_s: how long a call of an env may take.
        max_restarts: how often in a row a worker is replaced that does not answer once.

    Attributes:
        facts: what each worker says about its envs.
        journal: what it needs to bring envs back; the vec env gives it one when all workers have made theirs.
        memory: descriptor of the shared memory.
        restarts: how many workers have been replaced.
        lost: env index -> reason, for envs that could not be brought back. The vec env ends their episodes in the next
            step, and empties it.

    Raises:
        ConfigError: the envs cannot be made, see `make_env`; or the system does not start so many workers.
        WorkerError: a worker was lost too often while it made its envs.
    """

    def __init__(self, specs: Sequence[WorkerSpec], timeout_s: float, max_restarts: int) -> None:
        self._main_process = os.getpid()
        self._context = ProcessContext.here()  # also of workers that are started later
        makes = [self._make_request(spec) for spec in specs]
        self._specs = specs
        self._budget = RestartBudget(max_restarts)
        self._interrupted_s = min(timeout_s, _INTERRUPTED_S)
        self._settings: dict[str, tuple[Any, ...]] = {}  # requests that a new worker gets, too
        self.journal: Journal | None = None
        self.restarts = 0
        self.lost: dict[int, str] = {}
        self.memory = anonymous_file("marl_sb3-arrays")
        self.workers = [
            Worker(
                spec.name,
                partial(fork_server, EnvServer.__module__),
                make,
                timeout_s=timeout_s,
                descriptors=[self.memory],
                polling_s=polling_s(len(specs)),
            )
            for spec, make in zip(specs, makes, strict=True)
        ]
        self._step_requests = [(number, _STEP) for number in range(len(specs))]
        try:
            self.facts = self._make_envs()
        except BaseException:
            self.close()
            raise

    @property
    def num_healthy(self) -> int:
        """How many workers run."""
        return sum(worker.is_healthy for worker in self.workers)

    # --- Requests ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Begin a step in all workers."""
        self._require_open()
        for worker in self.workers:
            worker.send(Kind.STEP)

    def steps(self) -> list[Message]:
        """Return the answers to `step`."""
        return self._answers(self._step_requests)

    def ask_all(self, name: str, *arguments: Any) -> list[Any]:
        """Do the same request in all workers, at the same time; returns the results."""
        return self.ask_each(name, [arguments for _ in self.workers])

    def ask_each(self, name: str, arguments: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Do a request in some workers, at the same time.

        Args:
            name: of the request, see `EnvServer`.
            arguments: of the request, for each worker; None: this one is not asked.

        Returns:
            The result of each worker; None for those that were not asked.
        """
        self._require_open()
        requests = [
            (number, (Kind.REQUEST, packed_request(name, each)))
            for number, each in enumerate(arguments)
            if each is not None
        ]
        for number, request in requests:
            self.workers[number].send(*request)
        results = iter([Worker.result(answer) for answer in self._answers(requests)])
        return [None if each is None else next(results) for each in arguments]

    def _require_open(self) -> None:
        if self.memory < 0:
            raise VecEnvOrderError("the vec env is closed, and its workers have ended")
        if self._main_process != os.getpid():
            raise VecEnvOrderError(f"the workers belong to process {self._main_process}, of which this one is a fork")

    def _answers(self, requests: Sequence[tuple[int, Request | None]]) -> list[Message]:
        """Return the answers to requests that were sent; the error of the worker with the first envs is raised."""
        answers = [self._answer(number, request) for number, request in requests]
        for answer in answers:
            if answer.kind == Kind.FAILED:
                Worker.result(answer)
        return answers

    def _answer(self, number: int, request: Request | None) -> Message:
        """Return the answer to a request that was sent; a worker that is lost is replaced, and asked again.

        Args:
            number: of the worker.
            request: None: to make the envs, which every worker is asked first.
        """
        worker = self.workers[number]
        while True:
            try:
                answer = worker.receive()
            except WorkerLostError as error:
                self._replace(number, error, request)
            else:
                self._budget.succeeded(number)
                return answer

    # --- Replacements ------------------------------------------------------------------------------------------------

    def _replace(self, number: int, error: WorkerLostError, request: Request | None) -> None:
        """Start a worker anew, bring its envs back, and ask it again.

        Raises:
            WorkerError: it was lost too often.
        """
        worker = self.workers[number]
        while True:
            if losses := self._budget.lost(number):
                raise _given_up(error, losses)
            self.restarts += 1
            _log.warning("%s; it is replaced", error)
            if error.stacks:
                _log.info("stacks of %s:\n%s", worker.name, error.stacks)
            try:
                worker.start()
                if request is not None:
                    worker.result(worker.receive())
                    self._bring_back(number)
                    worker.send(*request)
            except WorkerLostError as again:
                error = again
            else:
                return

    def _bring_back(self, number: int) -> None:
        worker, spec = self.workers[number], self._specs[number]
        for name, arguments in self._settings.items():
            worker.ask(name, *arguments)
        if self.journal is None:
            return
        lost: Mapping[int, str] = worker.ask("restore", *self.journal.of_worker(number))
        for row, why in lost.items():
            _log.warning("inexact: a new episode begins in env %d: %s", spec.first_index + row, why)
            self.lost[spec.first_index + row] = why
        _log.info("%s: %d of %d envs are back", worker.name, spec.num_envs - len(lost), spec.num_envs)

    # --- Begin and end -----------------------------------------------------------------------------------------------

    def _make_envs(self) -> list[Facts]:
        """Start all workers; returns what they say about their envs."""
        try:
            for worker in self.workers:
                worker.start()
            for answer in self._answers([(number, None) for number in range(len(self.workers))]):
                Worker.result(answer)
            return self.ask_all("facts")
        except WorkerRefusedError as error:
            raise ConfigError(
                f"n_workers is {len(self.workers)}, but {error}; accepted: fewer workers, or higher limits (ulimit -n "
                "for open files, ulimit -u for processes)",
                key="n_workers",
            ) from error
        except FirstEnvMadeError as error:
            raise self._explained(*error.args) from None

    def _make_request(self, spec: WorkerSpec) -> bytes:
        try:
            packed = by_value((EnvServer, (spec,)))
        except Exception as error:
            factory = getattr(spec.factory, "__qualname__", None) or repr(spec.factory)
            raise ConfigError(
                f"n_workers: the env factory {factory} or an argument of the env cannot be sent to a worker: "
                f"{type(error).__name__}: {error}; accepted: functions and classes that hold no open files, "
                "locks or connections; n_workers=0 makes the envs in this process",
                key="n_workers",
            ) from error
        return packed_request("make", (self._context, packed))

    def _explained(self, env_index: int, error: Exception) -> Exception:
        """Find out whether an env that could not be made after another one can be made alone."""
        number = next(number for number, spec in enumerate(self._specs) if env_index in spec.indices)
        worker = self.workers[number]
        worker.end()
        worker.make = self._make_request(replace(self._specs[number], first_index=env_index, num_envs=1))
        try:
            worker.start()
            worker.result(worker.receive())
        except Exception:
            return error
        return ConfigError(
            f"n_workers is {len(self.workers)}, but only one such env can be made in a process: {error}; accepted: "
            f"n_workers={self._specs[0].num_envs_of_all}, one for each env",
            key="n_workers",
        )

    def set_in_all(self, name: str, *arguments: Any) -> None:
        """Do a request in all workers, and in those that replace them."""
        self.ask_all(name, *arguments)
        self._settings[name] = arguments

    def stacks(self) -> list[str]:
        """Return what each worker is doing, with its name."""
        return stacks_of(self.workers)

    def close_envs(self) -> None:
        """Let the workers close their envs; those that have ended are not replaced.

        After an interrupt, which leaves requests unanswered, the time is short: envs may hang.
        """
        if self._main_process != os.getpid():
            return  # this process was forked from the one that has the workers
        is_interrupted = any(worker.is_busy for worker in self.workers)
        until_s = time.monotonic() + self._interrupted_s if is_interrupted else None
        for worker in self.workers:
            worker.send(Kind.REQUEST, packed_request("close", ()))
        for worker in self.workers:
            try:
                if worker.is_healthy:
                    Worker.result(worker.receive(until_s))
            except WorkerLostError as error:
                _log.warning("%s, before it had closed its envs", error)

    def close(self) -> None:
        """End all workers, and free the shared memory."""
        for worker in self.workers:
            worker.free()
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1


def _given_up(lost: WorkerLostError, losses: int) -> WorkerError:
    times = f"{losses} times in a row" if losses > 1 else "once"
    error = WorkerError(f"{lost}; it was lost {times}, and max_worker_restarts is {losses - 1}")
    if lost.stacks:
        error.__cause__ = WorkerTracebackError(lost.stacks)
    return error
