"""Replay buffers whose minibatches hold n-step returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from marl_sb3.learners.buffers.row_rings import RowRings
from marl_sb3.types import Array

if TYPE_CHECKING:  # base class of the mixin for type checkers: both buffers have its attributes
    _Base = ReplayBuffer
else:
    _Base = object


class _NStepReturns(RowRings, _Base):
    """Mixin: returns over the next `n_steps` transitions of a row, or fewer where they end.

    Operation by operation as SB3's `NStepReplayBuffer`. A step is an action of the agent; what the agent is paid while
    it waits belongs to its latest action.

    Args:
        n_steps: the most transitions that a return runs over.
        gamma: discount of a transition.
    """

    def __init__(self, *args: Any, n_steps: int, gamma: float, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.n_steps, self.gamma = n_steps, gamma

    def _samples_at(self, lines: Array, columns: Array, env: VecNormalize | None) -> Any:
        span = np.arange(self.n_steps)
        places = (lines[:, None] + span) % self.buffer_size, columns[:, None]
        last = self._last_steps(*places)
        taken = span <= last[:, None]
        rewards = self._normalize_reward(self.rewards[places], env) * self.gamma ** span.astype(np.float32) * taken
        final = (lines + last) % self.buffer_size, columns
        dones = self.dones[final] * (1 - self.timeouts[final])
        discounts = self.gamma ** taken.sum(axis=1, keepdims=True).astype(np.float32)
        of_batch: Any = DictReplayBufferSamples if isinstance(self.observations, dict) else ReplayBufferSamples
        return of_batch(
            observations=self._seen(self.observations, (lines, columns), env),
            actions=self.to_torch(self.actions[lines, columns]),
            next_observations=self._seen(self.next_observations, final, env),
            dones=self.to_torch(dones[:, None]),
            rewards=self.to_torch(rewards.sum(axis=1, keepdims=True)),
            discounts=self.to_torch(discounts),
        )

    def _last_steps(self, lines: Array, columns: Array) -> Array:
        """(batch,) the number of the first transition that ended an episode or has no successor; else of the last."""
        over = (self.dones[lines, columns] > 0) | (self.timeouts[lines, columns] > 0)
        over |= (lines + 1) % self.buffer_size == self._next[columns]
        last: Array = np.where(over.any(axis=1), over.argmax(axis=1), self.n_steps - 1)
        return last


class NStepBuffer(_NStepReturns, ReplayBuffer):
    """`ReplayBuffer` with n-step returns."""


class NStepDictBuffer(_NStepReturns, DictReplayBuffer):
    """The same for `Dict` observations, which SB3 does not have."""
