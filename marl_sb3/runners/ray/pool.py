"""A pool of Ray actors, each of which hosts shards."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from marl_sb3.errors import ConfigError
from marl_sb3.processes.messages import pass_on
from marl_sb3.runners.ray.connection import Connection
from marl_sb3.runners.shards.host import Logged, RunnerProcess
from marl_sb3.runners.shards.plan import ShardFault, ShardPlan
from marl_sb3.runners.shards.pool import Answer, Lost


class RayPool:
    """See `Pool`.

    Args:
        connection: is closed with the pool.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ray = connection.ray
        self._options = {**connection.options, "max_restarts": 0, "max_task_retries": 0}
        self._actors: dict[int, Any] = {}
        self._numbers, self._tickets = itertools.count(), itertools.count()
        self._asked: dict[Any, tuple[int, int]] = {}  # reference -> runner, ticket
        self._plan: Any = None

    def begin(self, plan: ShardPlan) -> int:
        """See `Pool.begin`."""
        if self._plan is None:
            self._plan = self._put_plan(plan)
        runner = next(self._numbers)
        self._actors[runner] = self._ray.remote(RunnerProcess).options(**self._options).remote(self._plan)
        return runner

    def _put_plan(self, plan: ShardPlan) -> Any:
        try:
            return self._ray.put(plan)
        except (TypeError, AttributeError, ValueError) as error:  # what pickle raises; Ray adds pages to it
            reason = error.__cause__ or error.__context__ or error
            raise ConfigError(
                f"the env or a policy cannot be sent to another process: {reason}; accepted: package.module:factory, "
                "or factories and classes that can be pickled",
                key="env",
            ) from error

    def send(self, runner: int, method: str, *arguments: Any) -> int:
        """See `Pool.send`."""
        ticket = next(self._tickets)
        self._asked[getattr(self._actors[runner], method).remote(*arguments)] = runner, ticket
        return ticket

    def share(self, value: Any) -> Any:
        """See `Pool.share`."""
        return self._ray.put(value)

    def poll(self, timeout_s: float) -> Sequence[Answer]:
        """See `Pool.poll`."""
        waiting = list(self._asked)
        if not waiting:
            return []
        ready, waiting = self._ray.wait(waiting, num_returns=1, timeout=timeout_s, fetch_local=False)
        if waiting:
            more, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0, fetch_local=False)
            ready += more
        return [self._answer(reference) for reference in ready]

    def _answer(self, reference: Any) -> Answer:
        return Answer(*self._asked.pop(reference), self._result(reference))

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return _unlogged(self._ray.get(reference))
        except errors.RayTaskError as error:
            return ShardFault("RuntimeError", f"a runner raised: {_words(error)}", str(error))
        except errors.RayError as error:
            return Lost(_words(error))

    def end(self, runner: int) -> None:
        """See `Pool.end`."""
        actor = self._actors.pop(runner)
        self._ray.kill(actor)
        for reference in [asked for asked, (owner, _) in self._asked.items() if owner == runner]:
            del self._asked[reference]

    def close(self) -> None:
        """See `Pool.close`."""
        for runner in list(self._actors):
            self.end(runner)
        self._connection.close()


def _unlogged(result: Any) -> Any:
    """Log in this process what was logged in a runner; returns the result without it."""
    if not isinstance(result, Logged):
        return result
    pass_on(result.messages)
    return result.result


def _words(error: BaseException) -> str:
    """Return what an exception of Ray says, on one line and without the stacks of its inner workings."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    first = lines[0] if lines else type(error).__name__
    last = lines[-1] if len(lines) > 1 and ": " in lines[-1] else ""
    last, *_ = re.split(r" (?:Worker exit type|Node Id):", last)
    return " ".join(f"{type(error).__name__}: {first} {last}".split())[:400]
