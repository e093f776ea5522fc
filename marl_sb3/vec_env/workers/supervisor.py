"""Talk to all workers, and replace those that end or hang."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from marl_sb3.errors import ConfigError, VecEnvOrderError, WorkerError
from marl_sb3.vec_env.workers.arrays import anonymous_file, board_bytes, boards
from marl_sb3.vec_env.workers.channel import Kind, Message
from marl_sb3.vec_env.workers.journal import Journal
from marl_sb3.vec_env.workers.pickling import WorkerTracebackError, packed_plan, packed_request
from marl_sb3.vec_env.workers.plan import EnvFacts, SharePlan, Surroundings
from marl_sb3.vec_env.workers.share import FirstEnvMadeError
from marl_sb3.vec_env.workers.worker import Worker, WorkerLostError, WorkerRefusedError

_log = logging.getLogger(__name__)

_INTERRUPTED_S = 5.0  # how long envs that were interrupted may take to answer and to close

Request = tuple[int, bytes]  # kind and payload of a message to a worker


class Supervisor:
    """All workers of a vec env.

    Args:
        plans: of the shares, one for each worker.
        timeout_s: how long a call of an env may take.
        max_restarts: how often in a row a worker is replaced that does not answer once.

    Attributes:
        facts: what each worker says about its envs.
        journal: what it needs to bring envs back.
        memory: descriptor of the shared memory.
        restarts: how many workers have been replaced.
        lost: env index -> reason, for envs that could not be brought back. The vec env ends their episodes in the next
            step, and empties it.

    Raises:
        ConfigError: the envs cannot be made, see `make_env`; or the system does not start so many workers.
        WorkerError: a worker was lost too often while it made its envs.
    """

    def __init__(self, plans: Sequence[SharePlan], timeout_s: float, max_restarts: int) -> None:
        self._main_process = os.getpid()
        self._surroundings = Surroundings.here()  # also of workers that are started later
        self._make_requests = [self._make_request(plan) for plan in plans]
        self._max_restarts = max_restarts
        self._num_envs = sum(plan.num_envs for plan in plans)
        self._made = False  # whether all workers have made their envs
        self._attached = False
        self._horizon: int | None = None
        self.journal = Journal(plans)
        self.restarts = 0
        self.lost: dict[int, str] = {}
        self.memory = anonymous_file("marl_sb3-arrays")
        os.ftruncate(self.memory, board_bytes(len(plans)))
        self.workers = [
            Worker(plan, self.memory, board, timeout_s)
            for plan, board in zip(plans, boards(self.memory, len(plans)), strict=True)
        ]
        self._step_requests = [(worker, (Kind.STEP, b"")) for worker in self.workers]
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
            name: of the request, see `ShareServer`.
            arguments: of the request, for each worker; None: this one is not asked.

        Returns:
            The result of each worker; None for those that were not asked.
        """
        self._require_open()
        requests = [
            (worker, (Kind.REQUEST, packed_request(name, each)))
            for worker, each in zip(self.workers, arguments, strict=True)
            if each is not None
        ]
        for worker, request in requests:
            worker.send(*request)
        results = iter([Worker.result(answer) for answer in self._answers(requests)])
        return [None if each is None else next(results) for each in arguments]

    def _require_open(self) -> None:
        if self.memory < 0:
            raise VecEnvOrderError("the vec env is closed, and its workers have ended")
        if self._main_process != os.getpid():
            raise VecEnvOrderError(f"the workers belong to process {self._main_process}, of which this one is a fork")

    def _answers(self, requests: Sequence[tuple[Worker, Request]]) -> list[Message]:
        """Return the answers to requests that were sent; the error of the worker with the first envs is raised."""
        answers = [self._answer(worker, request) for worker, request in requests]
        for answer in answers:
            if answer.kind == Kind.FAILED:
                Worker.result(answer)
        return answers

    def _answer(self, worker: Worker, request: Request) -> Message:
        """Return the answer to a request that was sent; a worker that is lost is replaced, and asked again."""
        while True:
            try:
                answer = worker.receive()
            except WorkerLostError as error:
                self._replace(worker, error)
                worker.send(*request)
            else:
                worker.losses = 0
                return answer

    # --- Replacements ------------------------------------------------------------------------------------------------

    def _replace(self, worker: Worker, error: WorkerLostError) -> None:
        """Start a worker anew, and bring its envs back.

        Raises:
            WorkerError: it was lost too often.
        """
        while True:
            worker.losses += 1
            if worker.losses > self._max_restarts:
                raise _given_up(worker, error)
            self.restarts += 1
            _log.warning("%s; it is replaced", error)
            if error.stacks:
                _log.info("stacks of %s:\n%s", worker.name(), error.stacks)
            try:
                self._bring_back(worker)
            except WorkerLostError as again:
                error = again
            else:
                return

    def _bring_back(self, worker: Worker) -> None:
        plan, number = worker.plan, worker.plan.worker
        worker.start()
        if not self._made:
            return  # it is asked to make them next
        worker.send(*self._make_requests[number])
        worker.result(worker.receive())
        if self._horizon is not None:
            worker.ask("limit_episodes", self._horizon)
        if not self._attached:
            return
        worker.ask("attach", self._num_envs)
        journal = self.journal
        lost: Mapping[int, str] = worker.ask(
            "restore", journal.state_of(number), journal.events_of(number), journal.shown_of(number)
        )
        for row, why in lost.items():
            _log.warning("inexact: a new episode begins in env %d: %s", plan.first_index + row, why)
            self.lost[plan.first_index + row] = why
        _log.info("%s: %d of %d envs are back", worker.name(), plan.num_envs - len(lost), plan.num_envs)

    # --- Begin and end -----------------------------------------------------------------------------------------------

    def _make_envs(self) -> list[EnvFacts]:
        """Start all workers; returns what they say about their envs."""
        requests = list(zip(self.workers, self._make_requests, strict=True))
        try:
            for worker, request in requests:
                worker.start()
                worker.send(*request)
            facts = [Worker.result(answer) for answer in self._answers(requests)]
        except WorkerRefusedError as error:
            raise ConfigError(
                f"n_workers is {len(self.workers)}, but {error}; accepted: fewer workers, or higher limits (ulimit -n "
                "for open files, ulimit -u for processes)",
                key="n_workers",
            ) from error
        except FirstEnvMadeError as error:
            raise self._explained(error) from None
        self._made = True
        return facts

    def _make_request(self, plan: SharePlan) -> Request:
        return Kind.REQUEST, packed_request("make", (self._surroundings, packed_plan(plan)))

    def _explained(self, error: FirstEnvMadeError) -> Exception:
        """Find out whether an env that could not be made after another one can be made alone."""
        worker = next(worker for worker in self.workers if error.env_index in worker.plan.indices)
        worker.end()
        try:
            worker.start()
            worker.send(*self._make_request(worker.plan.of_one(error.env_index)))
            worker.result(worker.receive())
        except Exception:
            return error.error
        return ConfigError(
            f"n_workers is {len(self.workers)}, but only one such env can be made in a process: {error}; accepted: "
            f"n_workers={self._num_envs}, one for each env",
            key="n_workers",
        )

    def attach(self) -> None:
        """Have all workers map the shared arrays, for which there is room now."""
        self.ask_all("attach", self._num_envs)
        self._attached = True

    def limit_episodes(self, env_steps: int) -> None:
        """See `MultiAgentVecEnv.limit_episodes`."""
        self.ask_all("limit_episodes", env_steps)
        self._horizon = env_steps

    def stacks(self) -> list[str]:
        """Return what each worker is doing, with its name."""
        running = [worker for worker in self.workers if worker.is_healthy]
        for worker in running:
            worker.write_stacks()
        return [f"{worker.name()}:\n{worker.stacks()}" for worker in running]

    def close_envs(self) -> None:
        """Let the workers close their envs; those that have ended are not replaced.

        After an interrupt, which leaves requests unanswered, the time is short: envs may hang.
        """
        if self._main_process != os.getpid():
            return  # this process was forked from the one that has the workers
        is_interrupted = any(worker.is_busy for worker in self.workers)
        until_s = time.monotonic() + _INTERRUPTED_S if is_interrupted else None
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


def _given_up(worker: Worker, lost: WorkerLostError) -> WorkerError:
    times = f"{worker.losses} times in a row" if worker.losses > 1 else "once"
    error = WorkerError(f"{lost}; it was lost {times}, and max_worker_restarts is {worker.losses - 1}")
    if lost.stacks:
        error.__cause__ = WorkerTracebackError(lost.stacks)
    return error
