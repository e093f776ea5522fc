"""Rollout buffers of sb3-contrib: with action masks, and with the states of LSTMs in minibatches of whole sequences."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import (
    RecurrentDictRolloutBufferSamples,
    RecurrentRolloutBufferSamples,
    RNNStates,
)
from stable_baselines3.common.utils import obs_as_tensor

from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.core.on_policy.rollout import TurnAwareRollout
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.types import Array, BoolArray

if TYPE_CHECKING:  # base classes of mixins, for type checkers alone
    _Recurrent = RecurrentRolloutBuffer
    _Transitions = TurnAwareRollout
else:
    _Recurrent = _Transitions = object

STATES = ("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf")


class WholeSequences(_Recurrent):
    """A mixin for sb3-contrib's recurrent rollout buffers: no minibatch has an episode start within a sequence.

    The sequences are sb3-contrib's: transitions of one row in one episode, padded to the length of the longest one.
    Where one begins with an episode, its initial state is zero here, and `episode_starts` are 0 everywhere. The same
    follows for the LSTM, which sb3-contrib calls once for the whole minibatch if there are no episode starts, and once
    per time step otherwise.
    """

    whole_sequences: bool = False  # whether minibatches are made in this way; sb3-contrib's own way otherwise

    def _get_samples(self, batch_inds: Array, env_change: Array, env: Any = None) -> Any:  # type: ignore[override]
        if isinstance(self.action_space, spaces.MultiBinary):
            # As SB3's own buffer does: PyTorch computes no log-probabilities of the int8 that sb3-contrib keeps.
            self.actions = self.actions.astype(np.float32, copy=False)
        if not self.whole_sequences:
            return super()._get_samples(batch_inds, env_change, env)
        starts = self.episode_starts[batch_inds].reshape(-1) > 0
        first, places, mask = _padded(starts | (env_change[batch_inds].reshape(-1) > 0))
        padded = batch_inds[places]
        own: Any = self.observations
        observations = map_arrays(lambda array: array[padded], own)
        made: Any = RecurrentDictRolloutBufferSamples if isinstance(own, dict) else RecurrentRolloutBufferSamples
        before = [getattr(self, name)[batch_inds[first]] for name in STATES]  # the stored states of first transitions
        for states in before:
            states[starts[first]] = 0.0
        hidden_pi, cell_pi, hidden_vf, cell_vf = (  # (layers, sequences, size) each
            self.to_torch(np.ascontiguousarray(states.swapaxes(0, 1))) for states in before
        )
        return made(
            observations=obs_as_tensor(observations, self.device),
            actions=self.to_torch(self.actions[padded]),
            old_values=self.to_torch(self.values[padded].reshape(-1)),
            old_log_prob=self.to_torch(self.log_probs[padded].reshape(-1)),
            advantages=self.to_torch(self.advantages[padded].reshape(-1)),
            returns=self.to_torch(self.returns[padded].reshape(-1)),
            lstm_states=RNNStates((hidden_pi, cell_pi), (hidden_vf, cell_vf)),
            episode_starts=self.to_torch(np.zeros(len(padded), dtype=np.float32)),
            mask=self.to_torch(mask.astype(np.float32)),
        )


def _padded(starts: BoolArray) -> tuple[Array, Array, BoolArray]:
    """Lay sequences out as rows of equal length.

    Args:
        starts: (n,) bool; where a sequence begins, besides at the first place.

    Returns:
        The (sequences,) first places; the places in each sequence, (sequences * longest,), with a place of the sequence
        as padding; which of them are no padding.
    """
    starts[0] = True
    first = np.flatnonzero(starts)
    lengths = np.diff(first, append=len(starts))
    within = np.arange(lengths.max())
    mask = within < lengths[:, None]
    places = first[:, None] + np.where(mask, within, 0)
    return first, places.reshape(-1), mask.reshape(-1)


class SequenceRolloutBuffer(WholeSequences, RecurrentRolloutBuffer):
    """sb3-contrib's `RecurrentRolloutBuffer` with minibatches of whole sequences."""


class SequenceDictRolloutBuffer(WholeSequences, RecurrentDictRolloutBuffer):  # type: ignore[misc]
    """A `SequenceRolloutBuffer` for `Dict` observations."""


class _WithStates(_Transitions):
    """A mixin for buffers of transitions: each transition holds the recurrent state before its action.

    Each state is an array of (buffer_size, n_envs, layers, size); sb3-contrib swaps layers and envs until `get`. The
    sequences that minibatches are made of follow the transitions of a row, however many steps lie between them.
    """

    of_transition = (*TurnAwareRollout.of_transition, *STATES)
    of_sample = (*TurnAwareRollout.of_sample, *STATES, "episode_starts")
    _row_starts: Array  # (transitions, 1), 1 where the transitions of a row begin; set when `get` flattens

    def more_columns(self, inputs: PolicyInputs) -> Mapping[str, Array]:
        return {name: array.swapaxes(0, 1) for name, array in zip(STATES, inputs.states, strict=True)}

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        """Minibatches of whole sequences, see sb3-contrib's `RecurrentRolloutBuffer.get`."""
        if not self.generator_ready:
            is_first = self.acted & (np.cumsum(self.acted, axis=0) == 1)
            if self.breaks is not None:  # the state before the action is known, but not what led to it
                is_first |= self.acted & self.breaks
            self._row_starts = self.swap_and_flatten(is_first)[self.swap_and_flatten(self.acted).reshape(-1)]
            self._keep_transitions()
            self.generator_ready = True
        split = np.random.randint(self.num_transitions)  # noqa: NPY002 - as sb3-contrib draws
        order = np.roll(np.arange(self.num_transitions), -split)
        batches = self._split(order, batch_size)
        yield from self._counted(self._get_samples(batch, self._row_starts) for batch in batches)  # type: ignore[arg-type]

    def _counted(self, batches: Iterable[Any]) -> Generator[Any, None, None]:
        for batch in batches:
            self.samples_drawn += int(batch.mask.sum())  # the rest is padding
            yield batch


class MemoryRolloutBuffer(_WithStates, WholeSequences, TurnAwareRollout, RecurrentRolloutBuffer):
    """A `RecurrentRolloutBuffer` that leaves steps in which a row does not act out of sequences and loss."""


class MemoryDictRolloutBuffer(_WithStates, WholeSequences, TurnAwareRollout, RecurrentDictRolloutBuffer):  # type: ignore[misc]
    """A `MemoryRolloutBuffer` for `Dict` observations."""


class _WithMasks(_Transitions):
    """A mixin for buffers of transitions: each transition holds the mask that its action was chosen with."""

    of_transition = (*TurnAwareRollout.of_transition, "action_masks")
    of_sample = (*TurnAwareRollout.of_sample, "action_masks")
    action_masks: Array  # (buffer_size, n_envs, n) float32, 1 where an action was allowed

    def more_columns(self, inputs: PolicyInputs) -> Mapping[str, Array]:
        all_allowed = np.ones(self.action_masks.shape[1:], dtype=np.float32)
        return {"action_masks": all_allowed if inputs.masks is None else inputs.masks.astype(np.float32)}


class ActionMaskRolloutBuffer(_WithMasks, TurnAwareRollout, MaskableRolloutBuffer):
    """A `MaskableRolloutBuffer` that leaves steps in which a row does not act out of loss and normalisation."""


class ActionMaskDictRolloutBuffer(_WithMasks, TurnAwareRollout, MaskableDictRolloutBuffer):
    """An `ActionMaskRolloutBuffer` for `Dict` observations."""
