"""Talk to all workers of a vec env, replace those that end or hang, and bring their envs back."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from marl_sb3.core.vec_env.observations import AgentLayout, map_arrays, put, taken
from marl_sb3.core.vec_env.step import FinalObservations, VecStep
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
from marl_sb3.extensions.remote.workers.server import EnvServer, Facts
from marl_sb3.extensions.remote.workers.spec import Event, Shown, WorkerSpec, WorkerState, polling_s
from marl_sb3.types import Array, BoolArray, Observations

_log = logging.getLogger(__name__)

MOST_STEPS = 500  # since the latest state; afterwards the workers are asked for a new one
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
        try:
            self.facts = self._make_envs()
        except BaseException:
            self.close()
            raise

    # --- Requests ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Begin a step in all workers."""
        self._require_open()
        for worker in self.workers:
            worker.send(Kind.STEP)

    def steps(self) -> list[Message]:
        """Return the answers to `step`; the error of the worker with the first envs is raised."""
        answers = [self._answer(number, _STEP) for number in range(len(self.workers))]
        for answer in answers:
            if answer.kind != Kind.STEPPED:
                Worker.result(answer)
        return answers

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
        requests = {
            number: (Kind.REQUEST, packed_request(name, each))
            for number, each in enumerate(arguments)
            if each is not None
        }
        for number, request in requests.items():
            self.workers[number].send(*request)
        answers = {number: self._answer(number, request) for number, request in requests.items()}
        results = {number: Worker.result(answer) for number, answer in answers.items()}
        return [results.get(number) for number in range(len(arguments))]

    def _require_open(self) -> None:
        if self.memory < 0:
            raise VecEnvOrderError("the vec env is closed, and its workers have ended")
        if self._main_process != os.getpid():
            raise VecEnvOrderError(f"the workers belong to process {self._main_process}, of which this one is a fork")

    def _answer(self, number: int, request: Request | None) -> Message:
        """Return the answer to a request that was sent; a worker that is lost is replaced, and asked again.

        Args:
            number: of the worker.
            request: None: to make the envs, which every worker is asked first.
        """
        worker, is_lost = self.workers[number], False
        while True:
            try:
                if is_lost:
                    worker.start()
                    if request is not None:
                        worker.result(worker.receive())
                        self._bring_back(number)
                        worker.send(*request)
                answer = worker.receive()
            except WorkerLostError as error:
                self._count(number, error)
                is_lost = True
            else:
                self._budget.succeeded(number)
                return answer

    def _count(self, number: int, error: WorkerLostError) -> None:
        """Note that a worker is lost.

        Raises:
            WorkerError: it was lost too often.
        """
        if losses := self._budget.lost(number):
            times = f"{losses} times in a row" if losses > 1 else "once"
            words = f"{error}; it was lost {times}, and max_worker_restarts is {losses - 1}"
            raise WorkerError(words) from (WorkerTracebackError(error.stacks) if error.stacks else None)
        self.restarts += 1
        _log.warning("%s; it is replaced", error)
        if error.stacks:
            _log.info("stacks of %s:\n%s", self.workers[number].name, error.stacks)

    def _bring_back(self, number: int) -> None:
        """Have a new worker do what the one that it replaces has done."""
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
                try:
                    worker.start()
                except WorkerRefusedError:
                    raise
                except WorkerLostError as error:
                    _log.debug("%s", error)  # it is started again when it does not answer
            for answer in [self._answer(number, None) for number in range(len(self.workers))]:
                Worker.result(answer)
            return self.ask_all("facts")
        except WorkerRefusedError as error:
            raise ConfigError(
                f"n_workers is {len(self.workers)}, but {error}; accepted: fewer workers, or higher limits (ulimit -n "
                "for open files, ulimit -u for processes)",
                key="n_workers",
            ) from error

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


# --- What brings envs back -------------------------------------------------------------------------------------------


class Journal:
    """The states of all workers' envs, the events since then, and what the agents in play saw last.

    Args:
        specs: of the workers.
        layout: the places of the agents in the arrays.
    """

    def __init__(self, specs: Sequence[WorkerSpec], layout: AgentLayout) -> None:
        self._specs, self._layout = specs, layout
        self.masked: dict[int, bool] = {}  # group -> whether it has masks, for the groups of which this is known
        self._latest: VecStep | None = None
        self._seen: list[Observations] | None = None  # by all agents in play; None: all of them are shown `_latest`
        self._states: Sequence[WorkerState | None] = [None for _ in specs]
        self._episodes = np.full(sum(spec.num_envs for spec in specs), -1)
        self._events: list[tuple[str, Sequence[int] | None, tuple[Any, ...]]] = []
        self._steps = 0

    def begin(self, states: Sequence[WorkerState], latest: VecStep) -> None:
        """Begin with the first step after a reset, or after `set_state`, and the states of each worker then."""
        self._latest, self._seen = latest, None
        self.renew(states)

    def renew(self, states: Sequence[WorkerState]) -> None:
        """Begin anew with the states of each worker after the latest step."""
        self._states, self._events, self._steps = states, [], 0
        self._episodes = np.concatenate([state["episodes"] for state in states])

    @property
    def is_full(self) -> bool:
        """Whether it is time for new states."""
        return self._steps >= MOST_STEPS

    def add_step(self, actions: Sequence[Array], step: VecStep) -> None:
        """Note a step.

        Args:
            actions: per group, (E, A_group, ...); they are copied.
            step: its result.
        """
        self._events.append(("step", None, tuple(group.copy() for group in actions)))
        self._steps += 1
        if step.reset_infos:
            self._episodes += step.episode_done
        self._keep_seen(step)
        self._latest = step

    def _keep_seen(self, step: VecStep) -> None:
        """Keep what agents that wait have seen: they are not shown anything."""
        assert self._latest is not None
        everybody_acts = b"\0" not in step.to_act.tobytes()  # faster than `all`
        if everybody_acts or not (_left_in_play(step) & ~step.to_act).any():
            self._seen = None
            return
        if self._seen is None:
            self._seen = [map_arrays(np.copy, group) for group in self._latest.observations]
        for group, new, seen in zip(self._layout.groups, step.observations, self._seen, strict=True):
            shown = step.to_act[:, group.columns]
            put(taken(new, shown), seen, shown)

    def add(self, name: str, env_indices: Sequence[int] | None, *arguments: Any) -> None:
        """Note a request that changes some envs.

        Args:
            name: a method of `EnvServer`.
            env_indices: the envs, whose rows are its first argument; None: all envs, and it takes no rows.
            arguments: the other ones.
        """
        self._events.append((name, env_indices, deepcopy(arguments)))

    def of_worker(self, worker: int) -> tuple[WorkerState | None, list[Event], Shown | None]:
        """Return the arguments of `EnvServer.restore` for one worker."""
        spec, latest, rows = self._specs[worker], self._latest, self._specs[worker].rows
        shown = None
        if latest is not None:
            observations = [map_arrays(lambda array: array[rows], group) for group in latest.observations]
            shown = Shown(latest.to_act[rows], observations, self._episodes[rows], self.masked)
        events: list[Event] = []
        for name, env_indices, arguments in self._events:
            if name == "step":
                events.append((name, tuple(group[rows] for group in arguments)))
            elif env_indices is None:
                events.append((name, arguments))
            elif of_worker := spec.rows_of(env_indices):
                events.append((name, (of_worker, *arguments)))
        return self._states[worker], events, shown

    def cut(self, step: VecStep, env_indices: Iterable[int]) -> VecStep:
        """Return a step in which the agents in play of these envs are truncated, on what they saw last.

        Args:
            step: the envs stood still in it, and have been reset; it has not been added yet.
            env_indices: the envs.
        """
        latest, rows = self._latest, list(env_indices)
        assert latest is not None
        truncated, in_play = step.truncated.copy(), step.in_play.copy()
        truncated[rows] = in_play[rows] = (_left_in_play(latest) | latest.to_act)[rows]
        seen = latest.observations if self._seen is None else self._seen
        finals = dict(step.final_observations)
        for row, column in np.argwhere(truncated).tolist():
            if row in rows:
                place = self._layout.places[self._layout.possible_agents[column]]
                finals[row, column] = map_arrays(np.copy, taken(seen[place.group], (row, place.group_column)))
        return replace(step, truncated=truncated, in_play=in_play, final_observations=FinalObservations(finals))


def _left_in_play(step: VecStep) -> BoolArray:
    """Return the agents that have acted and have not ended after a step, (E, A) bool."""
    return step.in_play & ~(step.terminated | step.truncated)
