"""A replay buffer of sequences: transitions of a row that follow one another, with the recurrent state before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize
from typing_extensions import override

from marl_sb3.core.off_policy.per_row_replay import PerRowReplay
from marl_sb3.core.off_policy.replay import Transitions
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.types import Array

Observed = Any  # a tensor of observations, or one for each key


class SequenceBatch(NamedTuple):
    """B sequences of transitions.

    T is the longest part that is learned from; n_steps - 1 transitions more are there for returns. Shorter sequences
    are padded at their ends. Time comes first, as PyTorch's LSTMs take it.
    """

    states: tuple[th.Tensor, ...]  # (layers, B, size) each, before the first transition of the burn-in
    burn_in: Observed  # (burn-in, B, ...), observations before those that are learned from
    burn_in_lengths: th.Tensor  # (B,) int64, on the CPU
    observations: Observed  # (T + n_steps, B, ...), with the one after the last transition of each sequence
    actions: th.Tensor  # (T, B, numbers)
    returns: th.Tensor  # (T, B) float32; the discounted rewards of n_steps transitions, or fewer at the end
    discounts: th.Tensor  # (T, B) float32; of the value that the return goes on with; 0 after a termination
    following: th.Tensor  # (T, B) int64; the place in `observations` of the one that has this value
    # (T, B) float32; 0 in the padding. Each sequence has the weight 1 / B, which its transitions share.
    weights: th.Tensor

    def after(self, values: th.Tensor) -> th.Tensor:
        """Return the (T, B) values that the returns go on with, of (T + n_steps, B) values of observations."""
        return values.gather(0, self.following)


class Sequences(PerRowReplay):
    """Mixin for an SB3 replay buffer: a ring for each row, from which sequences of its transitions are drawn.

    A sequence ends with the episode, or where the row was broken off. To draw one, draw a transition, and at which of
    the `sequence_length` places it stands. As each sequence shares out one weight, each transition counts the same in
    expectation, also those at the start and at the end of an episode, of which fewer neighbours are there.

    Args:
        num_states: number of recurrent states of a row: 2 for an LSTM.
        state_shape: (layers, size) of each.
        kept_states: those that are kept; the others are always zero.
        burn_in: the most transitions before a sequence from which its initial state is computed anew.
        sequence_length: the most transitions that are learned from.
        n_steps: the most transitions that a return runs over.
        gamma: discount of a transition.

    Attributes:
        num_drawn: number of transitions that were drawn to be learned from since it was set.
        states_before: (rows, num_states, *state_shape), those before the transitions that SB3's own loop adds next.
    """

    states_before: Array

    names: ClassVar[Sequence[str]] = (*PerRowReplay.names, "states")

    def __init__(
        self,
        *arguments: Any,
        num_states: int,
        state_shape: tuple[int, int],
        kept_states: Sequence[int],
        burn_in: int,
        sequence_length: int,
        gamma: float,
        n_steps: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self.num_states, self.kept_states, self.num_drawn = num_states, [*kept_states], 0
        self.burn_in, self.sequence_length, self.n_steps, self.gamma = burn_in, sequence_length, n_steps, gamma
        shape = (self.buffer_size, self.n_envs, len(self.kept_states), *state_shape)
        self.states: Array = np.zeros(shape, dtype=np.float32)

    @override
    def _put_observations(self, places: Any, added: Transitions) -> None:
        super()._put_observations(places, added)
        assert added.states is not None
        self.states[places] = added.states[:, self.kept_states]

    def add(self, obs: Any, next_obs: Any, action: Array, reward: Array, done: Array, infos: Any) -> None:
        """See `ReplayBuffer.add`."""
        timeouts = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        rows = np.arange(self.n_envs)
        ends = np.asarray(done), timeouts, rows, None, self.states_before
        self.add_transitions(Transitions(obs, next_obs, action, reward, *ends))

    # --- Drawing -----------------------------------------------------------------------------------------------------

    def _samples_at(self, lines: Array, columns: Array, env: VecNormalize | None) -> SequenceBatch:
        """Return sequences with these transitions."""
        places = np.random.randint(0, self.sequence_length, size=len(lines))  # noqa: NPY002 - SB3's generator
        return self.sequences_at(lines, columns, places, env)

    def sequences_at(self, lines: Array, columns: Array, places: Array, env: VecNormalize | None) -> SequenceBatch:
        """Return the sequence of each transition.

        Args:
            lines: (B,) int64, of the transitions.
            columns: (B,) int64, their rows.
            places: (B,) int64, where each stands in its sequence, if this begins within its episode.
            env: normalises them; None: they are as they were added.
        """
        before, after = self._neighbours(lines, columns)
        back = np.minimum(places, before)
        starts, burn_in = lines - back, np.minimum(before - back, self.burn_in)
        lengths = back + np.minimum(self.sequence_length - places, after + 1)
        # With those that are there for returns alone.
        held = back + np.minimum(self.sequence_length - places + self.n_steps - 1, after + 1)
        self.num_drawn += int(lengths.sum())
        first = ((starts - burn_in) % self.buffer_size, columns)
        burning = np.arange(burn_in.max(initial=0))[:, None]
        return SequenceBatch(
            self._states_at(first),
            self._seen(self.observations, ((first[0] + np.minimum(burning, burn_in)) % self.buffer_size, columns), env),
            th.as_tensor(burn_in),
            self._observations(starts, columns, held, env),
            *self._returns(starts, columns, lengths, held, env),
        )

    def _neighbours(self, lines: Array, columns: Array) -> tuple[Array, Array]:
        """(B,) how many transitions of the same episode are known before and after each, as far as they are needed."""
        oldest = np.where(self._wrapped, self._next, 0)[columns]
        age = (lines - oldest) % self.buffer_size  # 0 for the oldest
        newest = self.counts[columns] - 1
        back = np.arange(1, self.burn_in + self.sequence_length)[:, None]
        ahead = np.arange(self.sequence_length + self.n_steps - 2)[:, None]
        from_before = self._continues(lines - back, columns) & (back <= age)
        to_after = self._continues(lines + ahead, columns) & (age + ahead < newest)
        return from_before.cumprod(axis=0).sum(axis=0), to_after.cumprod(axis=0).sum(axis=0)

    def _continues(self, lines: Array, columns: Array) -> Array:
        """Whether the episode of each transition goes on with the next line."""
        places = lines % self.buffer_size, columns
        goes_on: Array = (self.dones[places] == 0) & (self.timeouts[places] == 0)
        return goes_on

    def _states_at(self, places: tuple[Array, Array]) -> tuple[th.Tensor, ...]:
        kept = self.states[places]  # (B, kept, layers, size)
        states = np.zeros((self.num_states, kept.shape[2], len(kept), kept.shape[3]), dtype=np.float32)
        states[self.kept_states] = kept.transpose(1, 2, 0, 3)
        return tuple(self.to_torch(states))

    def _observations(self, starts: Array, columns: Array, held: Array, env: VecNormalize | None) -> Observed:
        """Return the observations of `held` transitions each, and the one after the last, which is repeated."""
        numbers = np.arange(held.max() + 1)[:, None]
        places = (starts + np.minimum(numbers, held - 1)) % self.buffer_size, columns
        last = (starts + held - 1) % self.buffer_size, columns
        own, final = self._normal(self.observations, places, env), self._normal(self.next_observations, last, env)
        return map_arrays(self.to_torch, _chosen(numbers < held, own, final))  # type: ignore[arg-type]

    def _normal(self, of_all: Any, places: Any, env: VecNormalize | None) -> Any:
        return self._normalize_obs(map_arrays(lambda array: array[places], of_all), env)

    def _returns(
        self, starts: Array, columns: Array, lengths: Array, held: Array, env: VecNormalize | None
    ) -> tuple[th.Tensor, ...]:
        """Return the parts of the batch from `actions` on."""
        numbers = np.arange(lengths.max())[:, None]
        places = (starts + np.minimum(numbers, lengths - 1)) % self.buffer_size, columns
        steps = np.clip(held - numbers, 1, self.n_steps)  # that each return runs over
        returns = np.zeros(steps.shape, dtype=np.float32)
        for step in range(self.n_steps):
            rewards = self._normalize_reward(self.rewards[(places[0] + step) % self.buffer_size, columns], env)
            returns += np.float32(self.gamma**step) * rewards * (step < steps)
        last = (places[0] + steps - 1) % self.buffer_size, columns
        terminated = self.dones[last] * (1 - self.timeouts[last])
        discounts = np.float32(self.gamma) ** steps.astype(np.float32) * (1 - terminated)
        weights = (numbers < lengths) / (lengths * len(lengths))
        following = np.minimum(numbers + steps, held)
        parts = returns, discounts, following, weights.astype(np.float32)
        return (self.to_torch(self.actions[places]), *(self.to_torch(part) for part in parts))


def _chosen(is_own: Array, own: Any, final: Any) -> Any:
    """Return the own observations where the mask, (T, 1 or B) bool, is True, else the final one of each sequence."""
    if isinstance(own, dict):
        return {key: _chosen(is_own, array, final[key]) for key, array in own.items()}
    return np.where(is_own.reshape(*is_own.shape, *[1] * (own.ndim - 2)), own, final)


class SequenceBuffer(Sequences, ReplayBuffer):
    """SB3's `ReplayBuffer` of sequences."""


class SequenceDictBuffer(Sequences, DictReplayBuffer):
    """The same for `Dict` observations."""
