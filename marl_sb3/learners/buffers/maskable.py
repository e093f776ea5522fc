"""sb3-contrib's rollout buffers with action masks, extended to rows that do not act in every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer

from marl_sb3.learners.buffers.rollout import TransitionsOnly
from marl_sb3.types import Array, BoolArray

if TYPE_CHECKING:
    _Base = TransitionsOnly
else:
    _Base = object


class _WithMasks(_Base):
    """A mixin for buffers of transitions: each transition holds the mask that its action was chosen with."""

    of_transition = (*TransitionsOnly.of_transition, "action_masks")
    of_sample = (*TransitionsOnly.of_sample, "action_masks")
    action_masks: Array  # (buffer_size, n_envs, n) float32, 1 where an action was allowed

    def begin_step(self, *arguments: Any, masks: BoolArray | None = None, states: Sequence[Array] = ()) -> None:
        """See `TransitionsOnly.begin_step`."""
        self.action_masks[self.pos] = 1.0 if masks is None else masks
        super().begin_step(*arguments)


class ActionMaskRolloutBuffer(_WithMasks, TransitionsOnly, MaskableRolloutBuffer):
    """A `MaskableRolloutBuffer` that leaves steps in which a row does not act out of loss and normalisation."""


class ActionMaskDictRolloutBuffer(_WithMasks, TransitionsOnly, MaskableDictRolloutBuffer):
    """An `ActionMaskRolloutBuffer` for `Dict` observations."""
