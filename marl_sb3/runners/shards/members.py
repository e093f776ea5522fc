"""The processes of a pool: start them, note which shards they have, and replace those that end."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_sb3.errors import ConfigError, RunnersLostError
from marl_sb3.runners.shards.plan import SavedShard, ShardFault, ShardPlan
from marl_sb3.runners.shards.pool import Answer, Lost, Pool, differing

_log = logging.getLogger(__name__)

_POLL_S = 1.0
_MAX_FAILED_STARTS = 3  # in a row; afterwards one process is started per round


@dataclass
class _Member:
    """A process of the pool.

    Attributes:
        ready: whether it runs and has the same versions.
        shards: those whose present state it has.
        asked: ticket -> the shards of a message that has not been answered, in order.
        asked_s: time since when it has owed an answer.
    """

    ready: bool = False
    shards: set[int] = field(default_factory=set)
    asked: dict[int, list[int]] = field(default_factory=dict)
    asked_s: float = 0.0

    def ask(self, ticket: int, shards: list[int]) -> None:
        """Note a message."""
        if not self.asked:
            self.asked_s = time.monotonic()
        self.asked[ticket] = shards

    def answered(self, ticket: int) -> list[int]:
        """Note an answer; returns the shards of the message, whose states the process has now."""
        shards = self.asked.pop(ticket)
        self.shards |= set(shards)
        self.asked_s = time.monotonic()
        return shards

    def is_silent(self, timeout_s: float) -> bool:
        """Whether it has owed an answer for longer than this."""
        return self.ready and bool(self.asked) and time.monotonic() - self.asked_s > timeout_s


@dataclass(frozen=True)
class Done:
    """A message was answered.

    Attributes:
        shards: of the message.
        result: what `ShardHost.work` returned.
    """

    shards: Sequence[int]
    result: Any


@dataclass(frozen=True)
class Loss:
    """A process has ended, or was ended because it did not answer.

    Attributes:
        why: in words.
        current: the shards that it was working on.
        shards: all shards that it owed an answer for.
    """

    why: str
    current: Sequence[int]
    shards: Sequence[int]


class Members:
    """The processes of a pool.

    Args:
        number: of processes.
        start_timeout_s: seconds that the start may take; later, seconds to wait for a process if none is left.
        round_timeout_s: seconds after which a process that does not answer is ended.

    Attributes:
        plan: how their shards are made.
        restarts: processes that have replaced others.
    """

    def __init__(
        self, pool: Pool, plan: ShardPlan, number: int, start_timeout_s: float, round_timeout_s: float
    ) -> None:
        self.plan = plan
        self.restarts = 0
        self._pool, self._number = pool, number
        self._start_timeout_s, self._round_timeout_s = start_timeout_s, round_timeout_s
        self._members: dict[int, _Member] = {}
        self._failed_starts = 0

    @property
    def ready(self) -> list[int]:
        """The processes that can be asked."""
        return [runner for runner, member in self._members.items() if member.ready]

    @property
    def holders(self) -> dict[int, int]:
        """Shard -> the process that has its present state."""
        return {shard: runner for runner, member in self._members.items() for shard in member.shards}

    # --- Start -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all processes.

        Raises:
            ConfigError: one has ended, has other versions, or has not started in time.
        """
        for _ in range(self._number):
            self._begin()
        deadline = time.monotonic() + self._start_timeout_s
        while len(self.ready) < self._number:
            for answer in self._pool.poll(_POLL_S):
                fault = self._greet(answer)
                if fault is not None:
                    raise ConfigError(f"a runner cannot start: {fault}", key="ray")
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{len(self.ready)} of {self._number} runners have started within {self._start_timeout_s:g} s; "
                    "accepted: as many as the cluster has resources for (ray.num_cpus each)",
                    key="ray.runners",
                )

    def _begin(self) -> None:
        runner = self._pool.begin(self.plan)
        self._members[runner] = member = _Member()
        member.ask(self._pool.send(runner, "versions"), [])

    def _greet(self, answer: Answer) -> str | None:
        """Take in the first answer of a process; returns in words why it cannot be used, or None."""
        member = self._members[answer.runner]
        member.answered(answer.ticket)
        if isinstance(answer.result, Lost):
            return answer.result.why
        if isinstance(answer.result, ShardFault):
            return answer.result.message
        fault = differing(answer.result)
        member.ready = fault is None
        return None if fault is None else f"it has {fault}"

    def replenish(self) -> None:
        """Begin to start processes in the place of those that are missing because several starts have failed."""
        if len(self._members) < self._number:
            self._failed_starts = min(self._failed_starts, _MAX_FAILED_STARTS - 1)
            self._replace()

    def _replace(self) -> None:
        if self._failed_starts < _MAX_FAILED_STARTS:
            self._begin()

    def _join_late(self, answer: Answer) -> None:
        fault = self._greet(answer)
        if fault is None:
            self._failed_starts = 0
            self.restarts += 1
            _log.info("a runner has joined: %d of %d", len(self.ready), self._number)
            return
        self._failed_starts += 1
        self._end(answer.runner)
        _log.warning("a runner that replaces another cannot start: %s", fault)
        self._replace()

    def wait_for_any(self) -> list[int]:
        """Return the processes that are ready; if none is, wait for one.

        Raises:
            RunnersLostError: none has become ready in time.
        """
        deadline = time.monotonic() + self._start_timeout_s
        while not self.ready:
            if time.monotonic() > deadline:
                raise RunnersLostError(f"no runner is left, and none has started within {self._start_timeout_s:g} s")
            if not self._members:  # several starts have failed, as on a node that was about to end
                time.sleep(_POLL_S)
                self.replenish()
            self.poll()
        return self.ready

    # --- Messages ----------------------------------------------------------------------------------------------------

    def least_busy(self) -> int:
        """Return the process that owes answers for the fewest shards; see `wait_for_any`."""
        return min(self.wait_for_any(), key=lambda runner: sum(map(len, self._members[runner].asked.values())))

    def ask(self, runner: int, shards: list[int], saved: Mapping[int, SavedShard], method: str, argument: Any) -> None:
        """Send one message: the states of shards that the process does not have, and what to do with all of these."""
        member = self._members[runner]
        for holder, other in self._members.items():
            moved = other.shards & set(shards) if holder != runner else set()
            if moved:
                other.shards -= moved
                self._pool.send(holder, "forget", sorted(moved))
        states = {shard: saved[shard] for shard in shards if shard not in member.shards}
        member.ask(self._pool.send(runner, "work", states, method, shards, argument), shards)

    def poll(self) -> list[Done | Loss]:
        """Return what has happened since the last call, or within a second; processes that have ended are replaced."""
        found: list[Done | Loss] = []
        for answer in self._pool.poll(_POLL_S):
            member = self._members.get(answer.runner)
            if member is None:
                continue  # it was lost a moment ago
            if not member.ready:
                self._join_late(answer)
            elif isinstance(answer.result, Lost):
                found.append(self._lose(answer.runner, answer.result.why))
            elif answer.ticket in member.asked:
                found.append(Done(member.answered(answer.ticket), answer.result))
        silent = [runner for runner, member in self._members.items() if member.is_silent(self._round_timeout_s)]
        return found + [self._lose(runner, f"no answer for {self._round_timeout_s:g} s") for runner in silent]

    def _lose(self, runner: int, why: str) -> Loss:
        asked = list(self._members[runner].asked.values())
        self._end(runner)
        _log.warning("a runner has ended (%s); its shards are rolled out again elsewhere", why)
        self._replace()
        return Loss(why, asked[0] if asked else [], [shard for shards in asked for shard in shards])

    def _end(self, runner: int) -> None:
        del self._members[runner]
        self._pool.end(runner)

    def forget_states(self, shards: Sequence[int]) -> None:
        """Note that the processes do not have the present states of these shards."""
        for member in self._members.values():
            member.shards -= set(shards)

    def forget_messages(self) -> None:
        """Note that answers which are still to come are not wanted; nobody knows what states the processes have."""
        for member in self._members.values():
            if member.ready:
                member.asked.clear()
                member.shards.clear()

    def close(self) -> None:
        """End all processes."""
        self._pool.close()
        self._members.clear()
