"""Roll out shards in other processes, and replace those that end.

The process of the learners keeps the state of every shard after each round. If a process ends, its shards are rolled
out again elsewhere from these states, to the same bits.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_sb3.errors import ConfigError, RunnersLostError
from marl_sb3.runners.shards.assignment import balanced
from marl_sb3.runners.shards.faults import result_or_raise
from marl_sb3.runners.shards.plan import Inexact, RoundOrder, SavedShard, ShardFault, ShardPlan, ShardRollout
from marl_sb3.runners.shards.pool import Answer, Lost, Pool, differing
from marl_sb3.storage.process_rng import preserve_rng
from marl_sb3.vec_env.interface import Health

_log = logging.getLogger(__name__)

_POLL_S = 1.0
_MAX_LOSSES = 5  # processes that may end while they roll out the same shard in the same round
_MAX_FAILED_STARTS = 3  # in a row, before no more processes are started


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


class SupervisedRunners:
    """`ShardRunners` in the processes of a pool.

    Args:
        make_pool: makes the pool; called when it is first needed.
        number: number of processes.
        start_timeout_s: seconds that the start may take; later, seconds to wait for a process if none is left.
        round_timeout_s: seconds after which a process that does not answer is killed and replaced.
    """

    def __init__(
        self, make_pool: Callable[[], Pool], number: int, start_timeout_s: float, round_timeout_s: float
    ) -> None:
        self._make_pool = make_pool
        self._number = number
        self._start_timeout_s, self._round_timeout_s = start_timeout_s, round_timeout_s
        self._pool: Pool | None = None
        self._plan: ShardPlan | None = None
        self._members: dict[int, _Member] = {}
        self._saved: dict[int, SavedShard] = {}
        self._restarts = self._failed_starts = 0

    @property
    def health(self) -> Health:
        """See `ShardRunners.health`."""
        return Health(len(self._ready()), self._restarts)

    def _ready(self) -> list[int]:
        return [runner for runner, member in self._members.items() if member.ready]

    # --- Start and end -----------------------------------------------------------------------------------------------

    def start(self, plan: ShardPlan) -> None:
        """See `ShardRunners.start`."""
        if self._pool is not None:
            return
        if self._number > plan.envs.n_shards:
            raise ConfigError(
                f"runners is {self._number}, more than the {plan.envs.n_shards} shards; accepted: at most n_shards",
                key="ray.runners",
            )
        with preserve_rng():
            try:
                self._start(plan)
            except BaseException:
                self.close()
                raise

    def _start(self, plan: ShardPlan) -> None:
        self._plan, self._pool = plan, self._make_pool()
        self._saved = {shard: SavedShard() for shard in plan.shards}
        for _ in range(self._number):
            self._begin()
        deadline = time.monotonic() + self._start_timeout_s
        while len(self._ready()) < self._number:
            for answer in self._running.poll(_POLL_S):
                self._require_started(answer)
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{len(self._ready())} of {self._number} runners have started within {self._start_timeout_s:g} s; "
                    "accepted: as many as the cluster has resources for (ray.num_cpus each)",
                    key="ray.runners",
                )
        self.restore(self._saved)

    def _begin(self) -> None:
        runner = self._running.begin(self._plan)
        self._members[runner] = member = _Member(asked_s=time.monotonic())
        member.asked[self._running.send(runner, "versions")] = []

    def _require_started(self, answer: Answer) -> None:
        fault = self._greeted(answer)
        if fault is not None:
            raise ConfigError(f"a runner cannot start: {fault}", key="ray")

    def _greeted(self, answer: Answer) -> str | None:
        """Take in the first answer of a process; returns in words why it cannot be used, or None."""
        member = self._members[answer.runner]
        member.asked.pop(answer.ticket, None)
        if isinstance(answer.result, Lost):
            return answer.result.why
        if isinstance(answer.result, ShardFault):
            return answer.result.message
        fault = differing(answer.result)
        member.ready = fault is None
        return None if fault is None else f"it has {fault}"

    @property
    def _running(self) -> Pool:
        assert self._pool is not None, "start() comes first"
        return self._pool

    def close(self) -> None:
        """See `ShardRunners.close`."""
        if self._pool is not None:
            self._pool.close()
            self._members.clear()

    # --- Rounds ------------------------------------------------------------------------------------------------------

    def roll_out(self, order: RoundOrder) -> list[ShardRollout]:
        """See `ShardRunners.roll_out`."""
        with preserve_rng():
            rollouts: dict[int, ShardRollout] = {}
            shared = self._running.share(order)
            self._work("roll_out", list(self._saved), shared, rollouts.update)
        for shard, rollout in rollouts.items():
            self._saved[shard] = rollout.state
        return [rollouts[shard] for shard in sorted(rollouts)]

    def restore(self, saved: Mapping[int, SavedShard]) -> dict[int, Inexact]:
        """See `ShardRunners.restore`."""
        with preserve_rng():
            for member in self._members.values():
                member.shards -= set(saved)
            self._saved.update(saved)
            inexact: dict[int, Inexact] = {}
            self._work("keep", list(saved), None, lambda _: None, inexact)
        return inexact

    def _work(
        self,
        method: str,
        shards: Sequence[int],
        argument: Any,
        keep: Callable[[dict[int, Any]], object],
        inexact: dict[int, Inexact] | None = None,
    ) -> None:
        """Let the processes do something with these shards, each shard once.

        Args:
            method: of `ShardHost`.
            argument: of the method.
            keep: is given what the method returned: shard -> result.
            inexact: is filled with what could not be restored exactly; None: it is logged as what a lost process cost.
        """
        work = _Work(method, argument, set(shards))
        try:
            self._complete(work, keep, inexact)
        except BaseException:
            self._forget_messages()
            raise

    def _forget_messages(self) -> None:
        """Note that answers which are still to come are not wanted, so that nobody knows what the processes have."""
        for member in self._members.values():
            if member.ready:
                member.asked.clear()
                member.shards.clear()

    def _complete(
        self, work: _Work, keep: Callable[[dict[int, Any]], object], inexact: dict[int, Inexact] | None
    ) -> None:
        for runner, own in balanced(list(self._saved), self._awaited_ready(), self._holders()).items():
            wanted = [shard for shard in own if shard in work.open]
            if wanted:
                self._ask(runner, wanted, work)
        while work.open:
            for answer in self._running.poll(_POLL_S):
                self._take(answer, work, keep, inexact)
            self._end_silent(work)
            if work.waiting:
                self._share_out(work)

    def _holders(self) -> dict[int, int]:
        return {shard: runner for runner, member in self._members.items() for shard in member.shards}

    def _ask(self, runner: int, shards: list[int], work: _Work) -> None:
        """Send one message: the states of shards that the process does not have, and what to do with all of these."""
        member = self._members[runner]
        for holder, other in self._members.items():
            moved = other.shards & set(shards) if holder != runner else set()
            if moved:
                other.shards -= moved
                self._running.send(holder, "forget", sorted(moved))
        states = {shard: self._saved[shard] for shard in shards if shard not in member.shards}
        if not member.asked:
            member.asked_s = time.monotonic()
        ticket = self._running.send(runner, "work", states, work.method, shards, work.argument)
        member.asked[ticket] = shards

    def _take(
        self,
        answer: Answer,
        work: _Work,
        keep: Callable[[dict[int, Any]], object],
        inexact: dict[int, Inexact] | None,
    ) -> None:
        member = self._members.get(answer.runner)
        if member is None:
            return
        if not member.ready:
            self._join_late(answer)
        elif isinstance(answer.result, Lost):
            self._lose(answer.runner, answer.result.why, work)
        elif answer.ticket in member.asked:
            shards = member.asked.pop(answer.ticket)
            member.asked_s = time.monotonic()
            restored, results = result_or_raise(answer.result)
            member.shards |= set(shards)
            work.open -= set(shards)
            keep(results)
            if inexact is not None:
                inexact.update(restored)
            else:
                _warn_of_inexact(restored)

    def _lose(self, runner: int, why: str, work: _Work) -> None:
        """Note that a process has ended: its shards wait for another one, and it is replaced."""
        member = self._members.pop(runner)
        self._running.end(runner)
        asked = list(member.asked.values())
        _log.warning("a runner has ended (%s); its shards are rolled out again elsewhere", why)
        work.note_loss(asked[0] if asked else [], why)
        work.waiting.extend(shard for shards in asked for shard in shards)
        self._replace()

    def _replace(self) -> None:
        if self._failed_starts < _MAX_FAILED_STARTS:
            self._begin()

    def _join_late(self, answer: Answer) -> None:
        fault = self._greeted(answer)
        if fault is None:
            self._failed_starts = 0
            self._restarts += 1
            _log.info("a runner has joined: %d of %d", len(self._ready()), self._number)
            return
        self._failed_starts += 1
        del self._members[answer.runner]
        self._running.end(answer.runner)
        _log.warning("a runner that replaces another cannot start: %s", fault)
        self._replace()

    def _share_out(self, work: _Work) -> None:
        """Give waiting shards to the processes with the least to do, one shard per message."""
        ready = self._awaited_ready()
        while work.waiting:
            idle = min(ready, key=lambda runner: sum(map(len, self._members[runner].asked.values())))
            self._ask(idle, [work.waiting.popleft()], work)

    def _awaited_ready(self) -> list[int]:
        """Return the processes that are ready; if none is, wait for one.

        Raises:
            RunnersLostError: none has become ready in time.
        """
        deadline = time.monotonic() + self._start_timeout_s
        while not self._ready():
            if not self._members or time.monotonic() > deadline:
                raise RunnersLostError(f"no runner is left, and none has started within {self._start_timeout_s:g} s")
            for answer in self._running.poll(_POLL_S):
                if answer.runner in self._members:
                    self._join_late(answer)
        return self._ready()

    def _end_silent(self, work: _Work) -> None:
        now = time.monotonic()
        for runner, member in list(self._members.items()):
            if member.ready and member.asked and now - member.asked_s > self._round_timeout_s:
                self._lose(runner, f"no answer for {self._round_timeout_s:g} s", work)

    # --- Envs --------------------------------------------------------------------------------------------------------

    def saved(self) -> list[SavedShard]:
        """See `ShardRunners.saved`."""
        return [self._saved[shard] for shard in sorted(self._saved)]

    def call(self, shard: int, name: str, env_indices: Sequence[int], args: Any, kwargs: Any) -> list[Any]:
        """See `ShardCalls.call`."""
        results: list[Any] = self._changed(shard, "call", name, env_indices, args, kwargs)
        return results

    def configure(self, shard: int, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None:
        """See `ShardCalls.configure`."""
        self._changed(shard, "configure", env_indices, settings)

    def _changed(self, shard: int, method: str, *arguments: Any) -> Any:
        """Let the process of a shard do something that changes the shard's state; returns the result."""
        results: dict[int, Any] = {}
        with preserve_rng():
            self._work(method, [shard], arguments, results.update)
        result, self._saved[shard] = results[shard]
        return result


@dataclass
class _Work:
    """What is done with some shards.

    Attributes:
        open: shards without a result so far.
        waiting: those of them whose process has ended.
        losses: shard -> processes that have ended over it.
    """

    method: str
    argument: Any
    open: set[int]
    waiting: deque[int] = field(default_factory=deque)
    losses: dict[int, int] = field(default_factory=dict)

    def note_loss(self, shards: Sequence[int], why: str) -> None:
        """Count a process that ended over these shards.

        Raises:
            RunnersLostError: it was one too many for one shard alone.
        """
        for shard in shards if len(shards) == 1 else ():
            self.losses[shard] = self.losses.get(shard, 0) + 1
            if self.losses[shard] >= _MAX_LOSSES:
                raise RunnersLostError(f"{_MAX_LOSSES} runners in a row have ended while in shard {shard}: {why}")


def _warn_of_inexact(restored: Mapping[int, Inexact]) -> None:
    for shard, inexact in restored.items():
        for index, why in inexact.items():
            _log.warning("inexact: a new episode begins in env %d of shard %d: %s", index, shard, why)
