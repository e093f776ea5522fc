"""Talk to all workers, and replace those that end or hang."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marl_sb3.errors import ConfigError, VecEnvOrderError, WorkerError
from marl_sb3.vec_env.workers.arrays import anonymous_file, board_bytes
from marl_sb3.vec_env.workers.channel import Kind, Message
from marl_sb3.vec_env.workers.journal import Journal
from marl_sb3.vec_env.workers.plan import EnvFacts, SharePlan, Shown, Surroundings, packed_plan
from marl_sb3.vec_env.workers.process import WorkerPlace
from marl_sb3.vec_env.workers.remote_errors import WorkerTracebackError
from marl_sb3.vec_env.workers.shares import FirstEnvMadeError
from marl_sb3.vec_env.workers.worker import Worker, WorkerLostError

_log = logging.getLogger(__name__)


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
        shown: returns what the agents of a share were shown last; None before the first reset.

    Raises:
        ConfigError: the envs cannot be made, see `make_env`.
        WorkerError: a worker ended while it made its envs.
    """

    def __init__(self, plans: Sequence[SharePlan], timeout_s: float, max_restarts: int) -> None:
        self._main_process = os.getpid()
        self._plans = plans
        self._packed = [packed_plan(plan) for plan in plans]
        self._max_restarts = max_restarts
        self._num_envs = sum(plan.num_envs for plan in plans)
        self._attached = False
        self._horizon: int | None = None
        self.journal = Journal(plans)
        self.restarts = 0
        self.lost: dict[int, str] = {}
        self.shown: Callable[[SharePlan], Shown | None] = lambda plan: None
        self.memory = anonymous_file("marl_sb3-arrays")
        os.ftruncate(self.memory, board_bytes(len(plans)))
        self.workers = [
            Worker(WorkerPlace(number, len(plans)), plan, self.memory, timeout_s) for number, plan in enumerate(plans)
        ]
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
        return self._answers([(Kind.STEP, b"") for _ in self.workers])

    def ask_all(self, name: str, *arguments: Any) -> list[Any]:
        """Do the same request in all workers, at the same time."""
        return self.ask_each(name, [arguments for _ in self.workers])

    def ask_each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Do a request in all workers, at the same time; returns the results."""
        self._require_open()
        requests = [(Kind.REQUEST, pickle.dumps((name, each))) for each in arguments]
        for worker, request in zip(self.workers, requests, strict=True):
            worker.send(*request)
        return [Worker.result(answer) for answer in self._answers(requests)]

    def ask(self, number: int, name: str, *arguments: Any) -> Any:
        """Do a request in one worker."""
        self._require_open()
        request = (Kind.REQUEST, pickle.dumps((name, arguments)))
        self.workers[number].send(*request)
        return Worker.result(self._answer(self.workers[number], request))

    def _require_open(self) -> None:
        if self.memory < 0:
            raise VecEnvOrderError("the vec env is closed, and its workers have ended")

    def _answers(self, requests: Sequence[tuple[int, bytes]]) -> list[Message]:
        """Return the answers to requests that were sent; the error of the worker with the first envs is raised."""
        answers = [self._answer(worker, request) for worker, request in zip(self.workers, requests, strict=True)]
        for answer in answers:
            if answer.kind == Kind.FAILED:
                Worker.result(answer)
        return answers

    def _answer(self, worker: Worker, request: tuple[int, bytes]) -> Message:
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
                _log.info("stacks of %s:\n%s", worker.words(), error.stacks)
            try:
                self._bring_back(worker)
            except WorkerLostError as again:
                error = again
            else:
                return

    def _bring_back(self, worker: Worker) -> None:
        number, plan = worker.place.worker, worker.plan
        worker.start()
        worker.ask("make", Surroundings.here(), self._packed[number])
        if self._horizon is not None:
            worker.ask("limit_episodes", self._horizon)
        if not self._attached:
            return
        worker.ask("attach", self._num_envs)
        shown = self.shown(plan)
        lost: Mapping[int, str] = worker.ask(
            "restore", self.journal.state_of(number), self.journal.events_of(number), shown
        )
        for row, why in lost.items():
            _log.warning("inexact: a new episode begins in env %d: %s", plan.first_index + row, why)
            self.lost[plan.first_index + row] = why
        _log.info("%s: %d of %d envs are back", worker.words(), plan.num_envs - len(lost), plan.num_envs)

    # --- Begin and end -----------------------------------------------------------------------------------------------

    def _make_envs(self) -> list[EnvFacts]:
        """Start all workers; returns what they say about their envs."""
        surroundings = Surroundings.here()
        try:
            for worker, packed in zip(self.workers, self._packed, strict=True):
                worker.start()
                worker.send(Kind.REQUEST, pickle.dumps(("make", (surroundings, packed))))
            return [Worker.result(worker.receive()) for worker in self.workers]
        except WorkerLostError as error:
            raise _with_stacks(WorkerError(f"{error}, while it made its envs"), error) from None
        except FirstEnvMadeError as error:
            raise self._explained(error) from None

    def _explained(self, error: FirstEnvMadeError) -> Exception:
        """Find out whether an env that could not be made after another one can be made alone."""
        number = next(number for number, plan in enumerate(self._plans) if error.env_index in plan.indices)
        place, plan = self.workers[number].place, self._plans[number].of_one(error.env_index)
        self.workers[number].free()
        alone = self.workers[number] = Worker(place, plan, self.memory, self.workers[number]._timeout_s)
        try:
            alone.start()
            alone.ask("make", Surroundings.here(), packed_plan(plan))
        except Exception:
            return error.error
        return ConfigError(
            f"n_workers is {len(self._plans)}, but only one such env can be made in a process: {error}; accepted: "
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
        return [f"{worker.words()}:\n{worker.stacks()}" for worker in self.workers if worker.is_healthy]

    def close_envs(self) -> None:
        """Let the workers close their envs; those that do not answer are not waited for."""
        if self._main_process != os.getpid():
            return  # this process was forked from the one that has the workers
        for worker in self.workers:
            worker.send(Kind.REQUEST, pickle.dumps(("close", ())))
        for worker in self.workers:
            try:
                if worker.is_healthy:
                    Worker.result(worker.receive())
            except WorkerLostError as error:
                _log.warning("%s, before it had closed its envs", error)

    def close(self) -> None:
        """End all workers, and free the shared memory."""
        for worker in self.workers:
            worker.free()
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1


def _given_up(worker: Worker, error: WorkerLostError) -> Exception:
    times = f"{worker.losses} times in a row" if worker.losses > 1 else "once"
    words = f"{error}; it was lost {times}, and max_worker_restarts is {worker.losses - 1}"
    return _with_stacks(WorkerError(words), error)


def _with_stacks(error: WorkerError, lost: WorkerLostError) -> WorkerError:
    if lost.stacks:
        error.__cause__ = WorkerTracebackError(lost.stacks)
    return error
