"""Let processes do something with shards, each shard once, whatever processes end meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from marl_sb3.errors import RunnersLostError
from marl_sb3.runners.shards.assignment import balanced
from marl_sb3.runners.shards.faults import result_or_raise
from marl_sb3.runners.shards.members import Done, Loss, Members
from marl_sb3.runners.shards.plan import Inexact, SavedShard

_MAX_LOSSES = 5  # processes that may end while they work on the same shard


class Work:
    """One piece of work.

    Args:
        members: the processes.
        saved: the states of all shards, for processes that do not have them.
        method: of `ShardHost`.
        shards: those to work on.
        argument: of the method.

    Attributes:
        results: shard -> what the method returned.
        inexact: shard -> what could not be restored exactly.
    """

    def __init__(
        self, members: Members, saved: Mapping[int, SavedShard], method: str, shards: Sequence[int], argument: Any
    ) -> None:
        self.results: dict[int, Any] = {}
        self.inexact: dict[int, Inexact] = {}
        self._members, self._saved = members, saved
        self._method, self._argument = method, argument
        self._open = set(shards)
        self._losses: Counter[int] = Counter()

    def run(self) -> None:
        """Do it.

        Raises:
            MarlSb3Error: like that in a shard.
            RunnersLostError: no process is left, or one shard has ended several of them.
        """
        try:
            self._begin()
            while self._open:
                for report in self._members.poll():
                    self._take(report)
        except BaseException:
            self._members.forget_messages()
            raise

    def _begin(self) -> None:
        self._members.replenish()
        ready = self._members.wait_for_any()
        for runner, own in balanced(list(self._saved), ready, self._members.holders).items():
            wanted = [shard for shard in own if shard in self._open]
            if wanted:
                self._ask(runner, wanted)

    def _ask(self, runner: int, shards: list[int]) -> None:
        self._members.ask(runner, shards, self._saved, self._method, self._argument)

    def _take(self, report: Done | Loss) -> None:
        if isinstance(report, Done):
            inexact, results = result_or_raise(report.result)
            self.inexact.update(inexact)
            self.results.update(results)
            self._open -= set(report.shards)
            return
        self._count(report)
        for shard in report.shards:  # one per message, so that a shard which ends its process takes no other with it
            self._ask(self._members.least_busy(), [shard])

    def _count(self, loss: Loss) -> None:
        """Count processes that end while they work on one shard alone."""
        if len(loss.current) != 1:
            return
        (shard,) = loss.current
        self._losses[shard] += 1
        if self._losses[shard] >= _MAX_LOSSES:
            where = self._members.plan.name_of(shard)
            raise RunnersLostError(f"{_MAX_LOSSES} runners have ended in one round while in {where}: {loss.why}")
