"""sb3-contrib's rollout buffers with LSTM states, extended to rows that do not act in every step."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer

from marl_sb3.learners.buffers.rollout import TransitionsOnly
from marl_sb3.learners.buffers.sequences import STATES, WholeSequences
from marl_sb3.types import Array, BoolArray

if TYPE_CHECKING:
    _Base = TransitionsOnly
else:
    _Base = object


class _WithStates(_Base):
    """A mixin for buffers of transitions: each transition holds the recurrent state before its action.

    Each state is an array of (buffer_size, n_envs, layers, size); sb3-contrib swaps layers and envs until `get`. The
    sequences that minibatches are made of follow the transitions of a row, however many steps lie between them.
    """

    of_transition = (*TransitionsOnly.of_transition, *STATES)
    of_sample = (*TransitionsOnly.of_sample, *STATES, "episode_starts")
    _row_starts: Array  # (transitions, 1), 1 where the transitions of a row begin; set when `get` flattens

    def begin_step(self, *arguments: Any, masks: BoolArray | None = None, states: Sequence[Array] = ()) -> None:
        """See `TransitionsOnly.begin_step`."""
        for name, array in zip(STATES, states, strict=True):
            getattr(self, name)[self.pos] = array.swapaxes(0, 1)
        super().begin_step(*arguments)

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        """Minibatches of whole sequences, see sb3-contrib's `RecurrentRolloutBuffer.get`."""
        if not self.generator_ready:
            self._row_starts = self._flat_row_starts()
            self._keep_transitions()
            self.generator_ready = True
        split = np.random.randint(self.num_transitions)  # noqa: NPY002 - as sb3-contrib draws
        order = np.roll(np.arange(self.num_transitions), -split)
        batches = self._split(order, batch_size)
        yield from self._counted(self._get_samples(batch, self._row_starts) for batch in batches)  # type: ignore[arg-type]

    def _flat_row_starts(self) -> Array:
        is_first = self.acted & (np.cumsum(self.acted, axis=0) == 1)
        starts: Array = self.swap_and_flatten(is_first)[self.swap_and_flatten(self.acted).reshape(-1)]
        return starts

    def _counted(self, batches: Iterable[Any]) -> Generator[Any, None, None]:
        for batch in batches:
            self.samples_drawn += int(batch.mask.sum())  # the rest is padding
            yield batch


class MemoryRolloutBuffer(_WithStates, WholeSequences, TransitionsOnly, RecurrentRolloutBuffer):
    """A `RecurrentRolloutBuffer` that leaves steps in which a row does not act out of sequences and loss."""


class MemoryDictRolloutBuffer(_WithStates, WholeSequences, TransitionsOnly, RecurrentDictRolloutBuffer):  # type: ignore[misc]
    """A `MemoryRolloutBuffer` for `Dict` observations."""
