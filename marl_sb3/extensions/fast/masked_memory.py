"""RecurrentPPO among the actions that a mask allows: policies, rollout buffers, the algorithm and its learner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.buffers import create_sequencers
from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from typing_extensions import override

from marl_sb3.core.acting import PolicyInputs, RecurrentRolloutPolicy, RolloutPolicy
from marl_sb3.core.on_policy import MemoryDictRolloutBuffer, MemoryRolloutBuffer
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast.contrib import RecurrentPPO, RecurrentPPOLearner
from marl_sb3.extensions.fast.fused_on_policy import FusedOnPolicy
from marl_sb3.extensions.fast.masked_on_policy import masks_in_update, without_gsde
from marl_sb3.extensions.fast.memory_cells import MemoryPolicy
from marl_sb3.types import Array, BoolArray
from marl_sb3.wrappers import choices_of

if TYPE_CHECKING:  # the base class, to mypy, of a mixin for both buffers
    _Memory = MemoryRolloutBuffer
else:
    _Memory = object

_FORBIDDEN = -1e8  # the logit of a forbidden action, as in sb3-contrib: its probability is 0 in 32 bits

# --- Policies --------------------------------------------------------------------------------------------------------


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

    def forward(  # type: ignore[override]
        self,
        obs: Any,
        lstm_states: RNNStates,
        episode_starts: th.Tensor,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> Any:
        """See `RecurrentActorCriticPolicy.forward`."""
        with self._masked(action_masks):
            return super().forward(obs, lstm_states, episode_starts, deterministic)

    def get_distribution(  # type: ignore[override]
        self, obs: Any, lstm_states: Any, episode_starts: th.Tensor, action_masks: Any = None
    ) -> Any:
        """See `RecurrentActorCriticPolicy.get_distribution`."""
        with self._masked(action_masks):
            return super().get_distribution(obs, lstm_states, episode_starts)

    def evaluate_actions(  # type: ignore[override]
        self,
        obs: Any,
        actions: th.Tensor,
        lstm_states: RNNStates,
        episode_starts: th.Tensor,
        action_masks: Any = None,
    ) -> Any:
        """See `RecurrentActorCriticPolicy.evaluate_actions`."""
        with self._masked(action_masks):
            return super().evaluate_actions(obs, actions, lstm_states, episode_starts)

    def predict(
        self,
        observation: Any,
        state: tuple[Array, ...] | None = None,
        episode_start: BoolArray | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> Any:
        """See `RecurrentActorCriticPolicy.predict`."""
        with self._masked(action_masks):
            return super().predict(observation, state, episode_start, deterministic)


class MaskableMemoryCnnPolicy(MaskableMemoryPolicy, RecurrentActorCriticCnnPolicy):
    """The same for images."""


class MaskableMemoryMultiInputPolicy(MaskableMemoryPolicy, RecurrentMultiInputActorCriticPolicy):
    """The same for `Dict` observations."""


# --- Rollout buffers -------------------------------------------------------------------------------------------------


class MaskedSequences(NamedTuple):
    """The fields of sb3-contrib's minibatches of sequences, and masks, (padded steps, choices), all true in padding."""

    observations: Any
    actions: th.Tensor
    old_values: th.Tensor
    old_log_prob: th.Tensor
    advantages: th.Tensor
    returns: th.Tensor
    lstm_states: RNNStates
    episode_starts: th.Tensor
    mask: th.Tensor
    action_masks: th.Tensor


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
        samples: Any = super()._get_samples(batch_inds, env_change, env)
        _, pad, _ = create_sequencers(self.episode_starts[batch_inds], env_change[batch_inds], self.device)
        masks = pad(self.action_masks[batch_inds], padding_value=1.0)
        return MaskedSequences(**samples._asdict(), action_masks=masks.reshape(-1, masks.shape[-1]))


class MaskedMemoryRolloutBuffer(_WithMasks, MemoryRolloutBuffer):
    """A `MemoryRolloutBuffer` with masks."""


class MaskedMemoryDictRolloutBuffer(_WithMasks, MemoryDictRolloutBuffer):  # type: ignore[misc]
    """The same for `Dict` observations."""


# --- The algorithm ---------------------------------------------------------------------------------------------------


@without_gsde
class MaskableRecurrentPPO(RecurrentPPO):
    """`RecurrentPPO` that chooses among the actions that a mask allows; it learns in marl_sb3's trainings.

    Its arguments and networks are those of RecurrentPPO, with LSTMs or GRUs. See `TwoPaths`.
    """

    policy_aliases: ClassVar[dict[str, type[Any]]] = {
        "MlpLstmPolicy": MaskableMemoryPolicy,
        "CnnLstmPolicy": MaskableMemoryCnnPolicy,
        "MultiInputLstmPolicy": MaskableMemoryMultiInputPolicy,
    }
    takes_joined_actions = False

    def learn(self, *arguments: Any, **settings: Any) -> Any:
        """Refuse: SB3's own loop passes no masks.

        Raises:
            ConfigError: always.
        """
        words = (
            "MaskableRecurrentPPO.learn() is SB3's loop, which stores no action masks; accepted: marl_sb3.train, or a"
        )
        raise ConfigError(f"{words} MultiAgentAlgorithm of the env with PolicySpec(marl_sb3.MaskableRecurrentPPO)")

    @override
    def _train_torch(self) -> None:
        buffer: Any = self.rollout_buffer
        buffer.whole_sequences = self.takes_fused_path()  # before a method of the policy is replaced
        with masks_in_update(self, "evaluate_actions"):
            FusedOnPolicy._train_torch(self)

    @override
    def predict(
        self,
        observation: Any,
        state: tuple[Array, ...] | None = None,
        episode_start: BoolArray | None = None,
        deterministic: bool = False,
        action_masks: Array | None = None,
    ) -> tuple[Array, tuple[Array, ...] | None]:
        """See `BaseAlgorithm.predict`.

        Args:
            observation: a single observation, or a batch of n.
            state: hidden and cell state of the actor, (layers, n, size) each; None: those of the start of an episode.
            episode_start: (n,), true where an episode begins; None: nowhere.
            deterministic: the most likely actions instead of sampled ones.
            action_masks: (choices,), or (n, choices) for a batch; true where an action is allowed. None: all are.
        """
        policy: Any = self.policy
        found: tuple[Array, Any] = policy.predict(observation, state, episode_start, deterministic, action_masks)
        return found


class MaskableRecurrentPPOLearner(RecurrentPPOLearner):
    """See `RecurrentPPOLearner`. An env without action masks is refused when its agents act first."""

    buffer_classes = (MaskedMemoryRolloutBuffer, MaskedMemoryDictRolloutBuffer)

    def _make_policy(self) -> RolloutPolicy:
        return RecurrentRolloutPolicy(self.algorithm, takes_masks=True)
