"""RecurrentPPO among the actions that a mask allows: policies, rollout buffers, the algorithm and its learner."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import sb3_contrib
import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.buffers import create_sequencers
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from typing_extensions import override

from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.core.on_policy.sequences import MemoryDictRolloutBuffer, MemoryRolloutBuffer
from marl_sb3.extensions.fast.contrib import RecurrentPPO, RecurrentPPOLearner
from marl_sb3.extensions.fast.dueling import with_kin
from marl_sb3.extensions.fast.fused_on_policy import FusedOnPolicy
from marl_sb3.extensions.fast.masked_on_policy import TakesMasks, masks_in_update, without_gsde
from marl_sb3.extensions.fast.memory_cells import MemoryPolicy
from marl_sb3.extensions.fast.update_path import LearnsInTrainings
from marl_sb3.types import Array
from marl_sb3.wrappers.observations import choices_of

if TYPE_CHECKING:  # the base class, to mypy, of a mixin for both buffers
    _Memory = MemoryRolloutBuffer
else:
    _Memory = object

_FORBIDDEN = -1e8  # the logit of a forbidden action, as in sb3-contrib: its probability is 0 in 32 bits

# --- Policies --------------------------------------------------------------------------------------------------------


def _taking_masks(name: str) -> Any:
    """Let a method of the base classes take action masks besides, as its last argument."""
    most = len(inspect.signature(getattr(RecurrentActorCriticPolicy, name)).parameters) - 1

    def masked(self: Any, *arguments: Any, action_masks: Any = None, **settings: Any) -> Any:
        if len(arguments) > most:
            *arguments, action_masks = arguments  # type: ignore[assignment]
        with self._masked(action_masks):
            return getattr(super(MaskableMemoryPolicy, self), name)(*arguments, **settings)

    return masked


class MaskableMemoryPolicy(MemoryPolicy):
    """A `MemoryPolicy` whose methods take action masks besides; without them it computes what that does.

    Masks are (rows, choices), laid out as for sb3-contrib's MaskablePPO: of several choices one after the other, of a
    MultiBinary space two for each bit, that for 0 first. In sequences there is a mask for each step.
    """

    _allowed: th.Tensor | None  # the masks of the call that is under way

    def _build(self, lr_schedule: Any) -> None:
        self._allowed = None
        super()._build(lr_schedule)

    @contextmanager
    def _masked(self, action_masks: Any) -> Iterator[None]:
        before = self._allowed  # of `predict`, which calls `get_distribution`
        if action_masks is not None:
            masks = th.as_tensor(action_masks, device=self.device)
            self._allowed = masks.reshape(-1, sum(choices_of(self.action_space) or ())) > 0
        try:
            yield
        finally:
            self._allowed = before

    @override
    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Any:
        if self._allowed is None:
            return super()._get_action_dist_from_latent(latent_pi)
        logits, allowed = self.action_net(latent_pi), self._allowed
        if isinstance(self.action_space, spaces.MultiBinary):  # there is one logit for each bit
            of_bits = allowed.reshape(*logits.shape, 2)
            logits = logits.masked_fill(~of_bits[..., 0], -_FORBIDDEN).masked_fill(~of_bits[..., 1], _FORBIDDEN)
        else:
            logits = logits.masked_fill(~allowed, _FORBIDDEN)
        distribution: Any = self.action_dist
        return distribution.proba_distribution(action_logits=logits)

    forward = _taking_masks("forward")
    get_distribution = _taking_masks("get_distribution")
    evaluate_actions = _taking_masks("evaluate_actions")
    predict = _taking_masks("predict")


# --- Rollout buffers -------------------------------------------------------------------------------------------------


class _WithMasks(_Memory):
    """A mixin for buffers of sequences: each transition holds the mask that its action was chosen with."""

    of_transition = (*MemoryRolloutBuffer.of_transition, "action_masks")
    of_sample = (*MemoryRolloutBuffer.of_sample, "action_masks")
    action_masks: Array  # (buffer_size, n_envs, n) float32, 1 where an action was allowed

    def reset(self) -> None:
        """Empty the buffer."""
        shape = (self.buffer_size, self.n_envs, sum(choices_of(self.action_space) or ()))
        if getattr(self, "action_masks", np.empty(0)).shape != shape:  # `get` has flattened them
            self.action_masks = np.ones(shape, dtype=np.float32)
        super().reset()

    def more_columns(self, inputs: PolicyInputs) -> Mapping[str, Array]:
        masks = np.ones(self.action_masks.shape[1:], np.float32) if inputs.masks is None else inputs.masks
        return {**super().more_columns(inputs), "action_masks": masks}

    def _get_samples(self, batch_inds: Array, env_change: Array, env: Any = None) -> Any:  # type: ignore[override]
        """Return a minibatch of sequences with masks, (padded steps, choices), all true in padding."""
        samples: Any = super()._get_samples(batch_inds, env_change, env)
        _, pad, _ = create_sequencers(self.episode_starts[batch_inds], env_change[batch_inds], self.device)
        masks = pad(self.action_masks[batch_inds], padding_value=1.0)
        return SimpleNamespace(**samples._asdict(), action_masks=masks.reshape(-1, masks.shape[-1]))


class MaskedMemoryRolloutBuffer(_WithMasks, MemoryRolloutBuffer):
    """A `MemoryRolloutBuffer` with masks."""


class MaskedMemoryDictRolloutBuffer(_WithMasks, MemoryDictRolloutBuffer):  # type: ignore[misc]
    """The same for `Dict` observations."""


# --- The algorithm ---------------------------------------------------------------------------------------------------


@without_gsde
class MaskableRecurrentPPO(LearnsInTrainings, TakesMasks, RecurrentPPO):
    """`RecurrentPPO` that chooses among the actions that a mask allows; it learns in marl_sb3's trainings.

    Its arguments and networks are those of RecurrentPPO, with LSTMs or GRUs. See `TwoPaths`.
    """

    policy_aliases: ClassVar[dict[str, type[Any]]] = with_kin(
        MaskableMemoryPolicy, "MaskableMemory", sb3_contrib.RecurrentPPO.policy_aliases
    )

    @override
    def _train_torch(self) -> None:
        buffer: Any = self.rollout_buffer
        buffer.whole_sequences = self.takes_fused_path()  # before a method of the policy is replaced
        with masks_in_update(self, "evaluate_actions"):
            FusedOnPolicy._train_torch(self)


class MaskableRecurrentPPOLearner(RecurrentPPOLearner):
    """See `RecurrentPPOLearner`. An env without action masks is refused when its agents act first."""

    buffer_classes = (MaskedMemoryRolloutBuffer, MaskedMemoryDictRolloutBuffer)
