"""Minibatches of whole sequences for LSTMs, which then need one call per minibatch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import (
    RecurrentDictRolloutBufferSamples,
    RecurrentRolloutBufferSamples,
    RNNStates,
)
from stable_baselines3.common.utils import obs_as_tensor

from marl_sb3.types import Array, BoolArray
from marl_sb3.vec_env.observations import map_arrays

if TYPE_CHECKING:
    _Base = RecurrentRolloutBuffer
else:
    _Base = object

STATES = ("hidden_states_pi", "cell_states_pi", "hidden_states_vf", "cell_states_vf")


class WholeSequences(_Base):
    """A mixin for sb3-contrib's recurrent rollout buffers: no minibatch has an episode start within a sequence.

    The sequences are sb3-contrib's: transitions of one row in one episode, padded to the length of the longest one.
    Where one begins with an episode, its initial state is zero here, and `episode_starts` are 0 everywhere. The same
    follows for the LSTM, which sb3-contrib calls once for the whole minibatch if there are no episode starts, and once
    per time step otherwise.

    Attributes:
        whole_sequences: whether minibatches are made in this way; sb3-contrib's own way otherwise.
    """

    whole_sequences: bool = False

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
        hidden_pi, cell_pi, hidden_vf, cell_vf = (
            self._initial_states(name, batch_inds[first], starts[first]) for name in STATES
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

    def _initial_states(self, name: str, first: Array, starts: BoolArray) -> Any:
        """(layers, sequences, size): the stored states before the first transitions, zero where episodes start."""
        states = getattr(self, name)[first]
        states[starts] = 0.0
        return self.to_torch(np.ascontiguousarray(states.swapaxes(0, 1)))


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
