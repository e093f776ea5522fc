"""Roll out all shards in the process of the learners, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from marl_sb3.runners.shards.faults import result_or_raise
from marl_sb3.runners.shards.host import ShardHost
from marl_sb3.runners.shards.plan import Inexact, RoundOrder, SavedShard, ShardPlan, ShardRollout
from marl_sb3.vec_env.interface import Health


class InProcessRunners:
    """`ShardRunners` without other processes: the reference for all others."""

    def __init__(self) -> None:
        self._host: ShardHost | None = None
        self._saved: dict[int, SavedShard] = {}

    @property
    def health(self) -> Health | None:
        """See `ShardRunners.health`."""
        return None

    def start(self, plan: ShardPlan) -> None:
        """See `ShardRunners.start`."""
        if self._host is None:
            self._host = ShardHost(plan)
            self.restore(dict.fromkeys(plan.shards, SavedShard()))

    @property
    def _running(self) -> ShardHost:
        assert self._host is not None, "start() comes first"
        return self._host

    def restore(self, saved: Mapping[int, SavedShard]) -> dict[int, Inexact]:
        """See `ShardRunners.restore`."""
        inexact = result_or_raise(self._running.restore(saved))
        self._saved.update(saved)
        return inexact

    def roll_out(self, order: RoundOrder) -> list[ShardRollout]:
        """See `ShardRunners.roll_out`."""
        rollouts = result_or_raise(self._running.roll_out(list(self._saved), order))
        self._saved = {shard: deepcopy(rollout.state) for shard, rollout in rollouts.items()}
        return list(rollouts.values())

    def saved(self) -> list[SavedShard]:
        """See `ShardRunners.saved`."""
        return list(self._saved.values())

    def call(self, shard: int, name: str, env_indices: Sequence[int], args: Any, kwargs: Any) -> list[Any]:
        """See `ShardCalls.call`."""
        changed = result_or_raise(self._running.call([shard], (name, env_indices, args, kwargs)))
        results: list[Any] = self._kept(shard, changed)
        return results

    def configure(self, shard: int, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None:
        """See `ShardCalls.configure`."""
        self._kept(shard, result_or_raise(self._running.configure([shard], (env_indices, settings))))

    def _kept(self, shard: int, changed: Mapping[int, tuple[Any, SavedShard]]) -> Any:
        result, state = changed[shard]
        self._saved[shard] = deepcopy(state)
        return result

    def close(self) -> None:
        """See `ShardRunners.close`."""
        if self._host is not None:
            self._host.close()
