"""A replay buffer that stores each observation once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from marl_sb3.errors import CheckpointError
from marl_sb3.learners.buffers.row_rings import RowRings
from marl_sb3.storage.parts import TensorFile
from marl_sb3.storage.state import StateReader
from marl_sb3.storage.tensor_file import pieces
from marl_sb3.types import Array, BoolArray, Observations


class CompactBuffer(RowRings, ReplayBuffer):
    """SB3's `ReplayBuffer` with `optimize_memory_usage`: the next observation is that of the row's next transition.

    At the end of an episode, that is the first observation of the next one. No target depends on it, because ends by a
    time limit count as terminations. Where a row was broken off, its column gets a line without a transition, a gap.
    """

    names: ClassVar[Sequence[str]] = ("observations", "actions", "rewards", "dones", "timeouts", "gaps")

    def _begin(self) -> None:
        super()._begin()
        self.gaps = np.zeros((self.buffer_size, self.n_envs), dtype=np.bool_)

    def _put_observations(self, places: Any, observations: Observations, next_observations: Observations) -> None:
        lines, columns = places
        for line, given in ((lines, observations), ((lines + 1) % self.buffer_size, next_observations)):
            self.observations[line, columns] = np.reshape(given, (len(columns), *self.obs_shape))  # type: ignore[arg-type]
        self.gaps[places] = False

    def break_off(self, rows: BoolArray) -> None:
        """See `RowRings.break_off`; the next observations of the latest transitions stay."""
        latest = (self._next - 1) % self.buffer_size, np.arange(self.n_envs)
        columns = np.flatnonzero(rows & (self.counts > 0) & ~self.gaps[latest] & (self.dones[latest] == 0))
        self.gaps[self._next[columns], columns] = True
        self._advance(columns)

    def _drawable(self) -> Array:
        """All but the line that is overwritten next: it holds the next observation of the latest transition."""
        return self.counts - self._wrapped

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """See `RowRings.sample`."""
        lines, columns = self._places(batch_size)
        missed = self.gaps[lines, columns]
        while missed.any():
            lines[missed], columns[missed] = self._places(int(missed.sum()))
            missed = self.gaps[lines, columns]
        return self._samples_at(lines, columns, env)

    def _places(self, batch_size: int) -> tuple[Array, Array]:
        numbers, columns = self._drawn(self._drawable(), batch_size)
        first = np.where(self._wrapped, self._next + 1, 0)
        return (numbers + first[columns]) % self.buffer_size, columns

    def _samples_at(self, lines: Array, columns: Array, env: VecNormalize | None) -> Any:
        following = (lines + 1) % self.buffer_size, columns
        places = lines, columns
        return ReplayBufferSamples(
            observations=self._seen(self.observations, places, env),
            actions=self.to_torch(self.actions[places]),
            next_observations=self._seen(self.observations, following, env),
            dones=self.to_torch((self.dones[places] * (1 - self.timeouts[places]))[:, None]),
            rewards=self.to_torch(self._normalize_reward(self.rewards[places][:, None], env)),
        )

    @property
    def can_sample(self) -> bool:
        """Whether there is a transition to draw."""
        return bool((self._drawable() > 0).any())

    # --- State -------------------------------------------------------------------------------------------------------

    @staticmethod
    def _lines_of(following: Array, wrapped: BoolArray, buffer_size: int) -> int:
        """See `RowRings._lines_of`; with the line of the latest next observations."""
        return min(RowRings._lines_of(following, wrapped, buffer_size) + 1, buffer_size)

    def read_state(self, state: StateReader, file: TensorFile) -> Callable[[], None]:
        """See `TransitionReplayBuffer.read_state`."""
        put = super().read_state(state, file)
        before = np.ones(self.n_envs, dtype=np.bool_)
        for _, gaps in pieces(file.arrays, "gaps"):
            if (gaps & np.concatenate([before[None], gaps[:-1]])).any():
                raise CheckpointError(f"{file.name}: gaps are not between transitions")
            before = gaps[-1]
        return put
