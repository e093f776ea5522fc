"""The protocol of what rolls out all shards of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from marl_sb3.runners.shards.plan import Inexact, RoundOrder, SavedShard, ShardPlan, ShardRollout
from marl_sb3.vec_env.interface import Health


class ShardRunners(Protocol):
    """Rolls out all shards of a training: in this process, or in others."""

    @property
    def health(self) -> Health | None:
        """The state of the processes; None if there are no others."""

    def start(self, plan: ShardPlan) -> None:
        """Start what is needed; a second call does nothing.

        Raises:
            ConfigError: it cannot be started; nothing is left behind.
        """

    def restore(self, saved: Mapping[int, SavedShard]) -> dict[int, Inexact]:
        """Restore the states of shards.

        Returns:
            Shard -> env index within it -> reason, for what could not be restored exactly.

        Raises:
            CheckpointError: a state does not fit its shard.
        """

    def roll_out(self, order: RoundOrder) -> list[ShardRollout]:
        """Take one round in all shards; returns their rollouts, in the order of the shards.

        Raises:
            EnvError: an env broke the `ParallelEnv` contract.
        """

    def saved(self) -> list[SavedShard]:
        """Return the states of all shards after the latest round."""

    def call(self, shard: int, name: str, env_indices: Sequence[int], args: Any, kwargs: Any) -> list[Any]:
        """See `ShardCalls.call`."""

    def configure(self, shard: int, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None:
        """See `ShardCalls.configure`."""

    def close(self) -> None:
        """Close all envs and end all processes; a second call does nothing."""
