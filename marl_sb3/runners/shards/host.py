"""The shards of one process: made when they are first needed, and then kept between rounds."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from marl_sb3.envs.registry import import_modules
from marl_sb3.errors import ConfigError, EnvRaisedError, MarlSb3Error, described
from marl_sb3.processes.messages import MessageLog
from marl_sb3.runners.shards.plan import Inexact, RoundOrder, SavedShard, ShardFault, ShardPlan, ShardRollout
from marl_sb3.runners.shards.pool import versions
from marl_sb3.runners.shards.shard import Shard

R = TypeVar("R")


class ShardHost:
    """Rolls out shards in this process. It returns faults instead of raising them, so that they can be sent.

    Args:
        plan: how the shards are made.
    """

    def __init__(self, plan: ShardPlan) -> None:
        self._plan = plan
        self._shards: dict[int, Shard] = {}

    def restore(self, saved: Mapping[int, SavedShard]) -> dict[int, Inexact] | ShardFault:
        """Make these shards if they are not here yet, and restore their states.

        Returns:
            Shard -> what could not be restored exactly; or the first fault.
        """
        inexact: dict[int, Inexact] = {}
        for shard, state in saved.items():
            restored = self._tried(shard, partial(_restored, state))
            if isinstance(restored, ShardFault):
                return restored
            inexact[shard] = restored
        return inexact

    def roll_out(self, shards: Sequence[int], order: RoundOrder) -> dict[int, ShardRollout] | ShardFault:
        """Take one round in these shards; returns shard -> rollout, or the first fault."""
        rollouts: dict[int, ShardRollout] = {}
        for shard in shards:
            rollout = self._tried(shard, lambda each: each.roll_out(order))
            if isinstance(rollout, ShardFault):
                return rollout
            rollouts[shard] = rollout
        return rollouts

    def keep(self, shards: Sequence[int], _: None) -> dict[int, None]:
        """Do nothing with these shards but have them."""
        return dict.fromkeys(shards)

    def call(
        self, shards: Sequence[int], arguments: tuple[str, Sequence[int], Any, Any]
    ) -> dict[int, tuple[list[Any], SavedShard]] | ShardFault:
        """See `ShardCalls.call`, for one shard; also returns the state of the shard afterwards."""
        return self._changed(shards, lambda each: each.call(*arguments))

    def configure(
        self, shards: Sequence[int], arguments: tuple[Sequence[int], Mapping[str, Any]]
    ) -> dict[int, tuple[None, SavedShard]] | ShardFault:
        """See `ShardCalls.configure`, for one shard; also returns the state of the shard afterwards."""
        return self._changed(shards, lambda each: each.configure(*arguments))

    def _changed(
        self, shards: Sequence[int], change: Callable[[Shard], R]
    ) -> dict[int, tuple[R, SavedShard]] | ShardFault:
        (shard,) = shards
        changed = self._tried(shard, lambda each: (change(each), each.saved()))
        return changed if isinstance(changed, ShardFault) else {shard: changed}

    def work(
        self, saved: Mapping[int, SavedShard], method: str, shards: Sequence[int], argument: Any
    ) -> tuple[dict[int, Inexact], Any] | ShardFault:
        """Restore the states of some shards, then call a method with these and other shards.

        Returns:
            What could not be restored exactly, and what the method returned; or the first fault.
        """
        inexact = self.restore(saved)
        if isinstance(inexact, ShardFault):
            return inexact
        result = getattr(self, method)(shards, argument)
        return result if isinstance(result, ShardFault) else (inexact, result)

    def versions(self) -> dict[str, str]:
        """Return the versions of this process."""
        return versions()

    def forget(self, shards: Sequence[int]) -> None:
        """Close shards that another process has from now on."""
        for shard in shards:
            if shard in self._shards:
                self._shards.pop(shard).close()

    def close(self) -> None:
        """Close all shards."""
        self.forget(list(self._shards))

    def _tried(self, shard: int, action: Callable[[Shard], R]) -> R | ShardFault:
        try:
            if shard not in self._shards:
                self._shards[shard] = self._made(shard)
            return action(self._shards[shard])
        except Exception as error:
            return _fault(self._plan, shard, error)

    def _made(self, shard: int) -> Shard:
        try:
            import_modules(self._plan.imports)
            return Shard(self._plan, shard)
        except EnvRaisedError as error:
            if not self._shards and str(error).startswith("env 0:"):
                raise
            raise ConfigError(
                f"{error}; this process has made other envs before; accepted, if it can make only one: as many shards "
                "and runners as envs",
                key="n_shards",
            ) from error


@dataclass(frozen=True)
class Logged:
    """A result, with what was logged on the way to it.

    Attributes:
        messages: see `MessageLog.taken`.
    """

    result: Any
    messages: Sequence[tuple[Any, ...]]


class RunnerProcess(ShardHost):
    """A `ShardHost` in a process of its own, which collects log records and warnings of the process."""

    def __init__(self, plan: ShardPlan) -> None:
        self._log = MessageLog()
        self._log.install()
        super().__init__(plan)

    def work(self, *arguments: Any) -> Any:
        """See `ShardHost.work`; the result is `Logged`."""
        return Logged(super().work(*arguments), self._log.taken())


def _restored(state: SavedShard, shard: Shard) -> Inexact:
    return shard.restore(state)


def _fault(plan: ShardPlan, shard: int, error: Exception) -> ShardFault:
    words = str(error) if isinstance(error, MarlSb3Error) else described(error)
    key = error.key if isinstance(error, ConfigError) else None
    kind = type(error).__name__
    return ShardFault(kind, f"{plan.name_of(shard)}: {words}", "".join(traceback.format_exception(error)), key)
