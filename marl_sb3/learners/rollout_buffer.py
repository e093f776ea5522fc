"""SB3's rollout buffers, for rows that are not always active."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer

from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.observations import map_arrays

_PER_STEP = ("actions", "values", "log_probs", "advantages", "returns")

if TYPE_CHECKING:  # what a mixin for both buffers may take for granted
    _Base = RolloutBuffer
else:
    _Base = object


class _ActiveRowsOnly(_Base):
    """Mixed into an SB3 rollout buffer: `get` draws minibatches from the active steps alone.

    A row is one agent of one env. Advantages of the active steps need no change: the step in which an agent ends is
    followed by an episode start, which cuts SB3's recursion before it reaches the inactive steps behind it.
    With every step active it does what SB3's buffer does, bit for bit.
    """

    active: BoolArray  # (buffer_size, n_envs)
    samples_drawn: int  # agent steps handed out in minibatches since `reset`

    def reset(self) -> None:
        """Empty the buffer, keeping its arrays unless `get` has flattened them."""
        self.samples_drawn = 0
        if hasattr(self, "active") and not self.generator_ready:
            self.pos, self.full = 0, False
            self.active.fill(True)
            return
        super().reset()
        self.active = np.ones((self.buffer_size, self.n_envs), dtype=np.bool_)

    def store(
        self,
        observations: Observations,
        actions: Array,
        rewards: Array,
        episode_starts: BoolArray,
        values: Array,
        log_probs: Array,
        active: BoolArray,
    ) -> None:
        """What `add` does, from arrays of (n_envs, ...) and without SB3's copies; `active` says which rows count."""
        here = self.pos
        if isinstance(observations, dict):
            for key, array in observations.items():
                self.observations[key][here] = array.reshape(self.observations[key][here].shape)
        else:
            self.observations[here] = observations.reshape(self.observations[here].shape)
        self.actions[here] = actions.reshape(self.n_envs, self.action_dim)
        self.rewards[here] = rewards
        self.episode_starts[here] = episode_starts
        self.values[here] = values
        self.log_probs[here] = log_probs
        self.active[here] = active
        self.pos += 1
        self.full = self.pos == self.buffer_size

    @property
    def num_active(self) -> int:
        """How many agent steps there are to learn from."""
        return int(self.active.sum())

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        """Minibatches of active steps in random order, see `RolloutBuffer.get`."""
        if self.active.all():
            yield from self._counted(super().get(batch_size))
            return
        if not self.generator_ready:
            self._drop_inactive()
            self.generator_ready = True
        order = np.random.permutation(self.num_active)  # noqa: NPY002 - SB3's stream of random numbers
        size = batch_size or max(1, self.num_active)
        batches = (order[start : start + size] for start in range(0, self.num_active, size))
        yield from self._counted(self._get_samples(batch) for batch in batches)

    def _counted(self, batches: Iterable[Any]) -> Generator[Any, None, None]:
        for batch in batches:
            self.samples_drawn += len(batch.advantages)
            yield batch

    def _drop_inactive(self) -> None:
        """Flatten as SB3 does, row after row, keeping the active steps only: also for `explained_variance`."""
        keep = self.swap_and_flatten(self.active).reshape(-1)
        for name in _PER_STEP:
            setattr(self, name, self.swap_and_flatten(getattr(self, name))[keep])
        observations: Any = self.observations
        self.observations = map_arrays(lambda array: self.swap_and_flatten(array)[keep], observations)  # type: ignore[assignment]


class MaskedRolloutBuffer(_ActiveRowsOnly, RolloutBuffer):
    """`RolloutBuffer` that keeps inactive rows out of the loss and out of advantage normalisation."""


class MaskedDictRolloutBuffer(_ActiveRowsOnly, DictRolloutBuffer):
    """The same for `Dict` observations."""


def flat_samples(rollout: Any, name: str) -> Any:
    """An array of a rollout buffer as (samples, ...), in SB3's order: row after row; active steps only.

    For observations of a `Dict` space: a dictionary of them.
    """
    observations: Observations = getattr(rollout, name)
    if rollout.generator_ready:
        return observations
    active = getattr(rollout, "active", None)
    keep = None if active is None or active.all() else rollout.swap_and_flatten(active).reshape(-1)

    def flat(array: Array) -> Array:
        rows: Array = rollout.swap_and_flatten(array)
        return np.ascontiguousarray(rows if keep is None else rows[keep])

    return map_arrays(flat, observations)
