"""Q-learning among the actions that a mask allows: MaskableDQN, what MaskableQRDQN shares with it, their buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch as th
from typing_extensions import override

from marl_sb3.core.off_policy.per_row_replay import CompactBuffer, HindsightBuffer
from marl_sb3.core.off_policy.replay import TransitionBuffer, Transitions
from marl_sb3.core.sb3.inference import q_values
from marl_sb3.core.state.state import TensorFile
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.extensions.fast.prioritized import NOT_PRIORITIZED, PRIORITIZED, SINGLE, with_columns
from marl_sb3.extensions.fast.replay import DQN, QLearning
from marl_sb3.extensions.fast.update_path import LearnsInTrainings
from marl_sb3.types import Array, BoolArray

# --- Replay buffers --------------------------------------------------------------------------------------------------


class WithMasks(TransitionBuffer):
    """Mixin for a replay buffer: holds which actions an agent could take after each transition.

    Attributes:
        drawn_masks: (batch, n) bool; those of the latest minibatch.
    """

    next_masks: BoolArray  # (lines, rows, n)
    drawn_masks: BoolArray

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        space: Any = self.action_space
        self.next_masks = np.ones((self.buffer_size, self.n_envs, int(space.n)), dtype=np.bool_)

    @override
    def _put_observations(self, places: Any, added: Transitions) -> None:
        super()._put_observations(places, added)
        self.next_masks[places] = True if added.next_masks is None else added.next_masks

    def _note_drawn(self, lines: Array, columns: Array) -> None:
        """Note of which transitions, by their places, the masks are those of the minibatch."""
        self.drawn_masks = self.next_masks[lines, columns]

    def require_columns(self, file: TensorFile, lines: int, rows: int) -> None:
        """See `TransitionBuffer.require_columns`; refuses masks that forbid every action: the best one has no value."""
        super().require_columns(file, lines, rows)
        if not all(piece.any(axis=-1).all() for _, piece in file.pieces("next_masks")):
            raise CheckpointError(f"{file.name}: next_masks forbid every action")

    # Where each kind of buffer knows which transitions it draws.

    def _last_steps(self, lines: Array, columns: Array) -> Array:
        """Note the masks after the last step of returns over several; see `NStepBuffer`."""
        last: Array = super()._last_steps(lines, columns)  # type: ignore[misc]
        self._note_drawn(lines[np.arange(len(last)), last], columns[:, 0])
        return last

    def _samples_at(self, lines: Array, columns: Array, env: Any) -> Any:
        self._note_drawn(lines, columns)
        return super()._samples_at(lines, columns, env)

    def _get_real_samples(self, batch_indices: Array, env_indices: Array, env: Any = None) -> Any:
        self._note_drawn(batch_indices, env_indices)  # which do not depend on the goal; see `HindsightBuffer`
        return super()._get_real_samples(batch_indices, env_indices, env)  # type: ignore[misc]

    def _get_virtual_samples(self, batch_indices: Array, env_indices: Array, env: Any = None) -> Any:
        real = self.drawn_masks  # which SB3 puts first
        self._note_drawn(batch_indices, env_indices)
        self.drawn_masks = np.concatenate([real, self.drawn_masks])
        return super()._get_virtual_samples(batch_indices, env_indices, env)  # type: ignore[misc]


# --- Algorithms ------------------------------------------------------------------------------------------------------


class MaskedQLearning(LearnsInTrainings, QLearning):
    """A base class in front of DQN or QR-DQN: no forbidden action is taken, or counts as the best one of a target."""

    buffers_by_replay: ClassVar[Mapping[str, Mapping[Any, Any]]] = {
        "uniform": with_columns(
            "Masked",
            WithMasks,
            {**SINGLE, CompactBuffer: CompactBuffer, HindsightBuffer: HindsightBuffer},
            "next_masks",
        ),
        "prioritized": {**with_columns("Masked", WithMasks, PRIORITIZED, "next_masks"), **NOT_PRIORITIZED},
    }

    @override
    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        if self.kernels() is not None:  # which do it themselves
            super().train(gradient_steps=gradient_steps, batch_size=batch_size)
            return
        hook = self.networks()[1].register_forward_hook(self._without_forbidden)
        try:
            super().train(gradient_steps=gradient_steps, batch_size=batch_size)
        finally:
            hook.remove()

    def _without_forbidden(self, _network: Any, _inputs: Any, values: th.Tensor) -> th.Tensor:
        """Return the values of the next observations, (rows, ..., n), with minus infinity for forbidden actions."""
        buffer: Any = self.replay_buffer
        forbidden = th.as_tensor(~buffer.drawn_masks, device=values.device)
        return values.masked_fill(forbidden if values.dim() == 2 else forbidden[:, None], -th.inf)

    def predict(
        self,
        observation: Any,
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Array, tuple[Array, ...] | None]:
        """See `BaseAlgorithm.predict`; as that of sb3-contrib's MaskablePPO.

        Args:
            observation: a single observation, or a batch of n.
            state: is returned as it is.
            episode_start: not used.
            deterministic: whether to take the best action; if not, random ones as often as `exploration_rate` says.
            action_masks: (actions,), or (n, actions) for a batch; true where an action is allowed. None: all are.

        Raises:
            ConfigError: the masks have another shape, or forbid every action.
        """
        if action_masks is None:
            return super().predict(observation, state, episode_start, deterministic)
        space: Any = self.action_space
        seen, is_batch = self.policy.obs_to_tensor(observation)
        rows = len(next(iter(seen.values())) if isinstance(seen, dict) else seen)
        allowed = np.asarray(action_masks, dtype=np.bool_).reshape(-1, space.n)
        if len(allowed) != rows or not allowed.any(axis=1).all():
            accepted = f"{rows} of {space.n}, with an allowed action each"
            raise ConfigError(f"action_masks of shape {np.shape(action_masks)}; accepted: {accepted}")
        if not deterministic and np.random.rand() < self.exploration_rate:  # type: ignore[attr-defined]  # noqa: NPY002
            actions = np.array([space.sample(mask) for mask in allowed.astype(np.int8)])
        else:
            values = q_values(self, observation, None)
            actions = np.where(allowed, values, -np.inf).argmax(axis=1)
        return actions if is_batch else actions.squeeze(axis=0), state


class MaskableDQN(MaskedQLearning, DQN):
    """`DQN` that chooses among the actions that a mask allows; it learns in marl_sb3's trainings. See `TwoPaths`."""
