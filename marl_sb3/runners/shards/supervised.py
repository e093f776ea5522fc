"""Roll out shards in other processes.

The process of the learners keeps the state of every shard after each round. If a process ends, its shards are rolled
out again elsewhere from these states, to the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marl_sb3.errors import ConfigError
from marl_sb3.runners.shards.members import Members
from marl_sb3.runners.shards.plan import Inexact, RoundOrder, SavedShard, ShardPlan, ShardRollout
from marl_sb3.runners.shards.pool import Pool
from marl_sb3.runners.shards.work import Work
from marl_sb3.storage.process_rng import preserve_rng
from marl_sb3.vec_env.interface import Health

_log = logging.getLogger(__name__)


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
        self._timeouts_s = start_timeout_s, round_timeout_s
        self._pool: Pool | None = None
        self._members: Members | None = None
        self._saved: dict[int, SavedShard] = {}

    @property
    def health(self) -> Health:
        """See `ShardRunners.health`."""
        return Health(0, 0) if self._members is None else Health(len(self._members.ready), self._members.restarts)

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
            self._pool = self._make_pool()
            try:
                self._members = Members(self._pool, plan, self._number, *self._timeouts_s)
                self._members.start()
                self.restore({shard: SavedShard() for shard in plan.shards})
            except BaseException:
                self.close()
                self._pool = self._members = None
                raise

    def restore(self, saved: Mapping[int, SavedShard]) -> dict[int, Inexact]:
        """See `ShardRunners.restore`."""
        self._started.forget_states(list(saved))
        self._saved.update(saved)
        return self._work("keep", list(saved), None).inexact

    def roll_out(self, order: RoundOrder) -> list[ShardRollout]:
        """See `ShardRunners.roll_out`."""
        assert self._pool is not None, "start() comes first"
        work = self._work("roll_out", list(self._saved), self._pool.share(order))
        self._keep({shard: rollout.state for shard, rollout in work.results.items()}, work)
        return [work.results[shard] for shard in self._saved]

    def saved(self) -> list[SavedShard]:
        """See `ShardRunners.saved`."""
        return list(self._saved.values())

    def call(self, shard: int, name: str, env_indices: Sequence[int], args: Any, kwargs: Any) -> list[Any]:
        """See `ShardCalls.call`."""
        results: list[Any] = self._changed(shard, "call", name, env_indices, args, kwargs)
        return results

    def configure(self, shard: int, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None:
        """See `ShardCalls.configure`."""
        self._changed(shard, "configure", env_indices, settings)

    def _changed(self, shard: int, method: str, *arguments: Any) -> Any:
        """Let the process of a shard do something that changes the shard's state; returns the result."""
        work = self._work(method, [shard], arguments)
        result, state = work.results[shard]
        self._keep({shard: state}, work)
        return result

    def _work(self, method: str, shards: Sequence[int], argument: Any) -> Work:
        work = Work(self._started, self._saved, method, shards, argument)
        with preserve_rng():
            work.run()
        return work

    @property
    def _started(self) -> Members:
        assert self._members is not None, "start() comes first"
        return self._members

    def _keep(self, states: Mapping[int, SavedShard], work: Work) -> None:
        """Keep new states, and log what was lost with processes on the way to them."""
        self._saved.update(states)
        for shard, inexact in work.inexact.items():
            for index, why in inexact.items():
                _log.warning("inexact: a new episode begins in env %d of shard %d: %s", index, shard, why)

    def close(self) -> None:
        """See `ShardRunners.close`."""
        if self._members is not None:
            self._members.close()
