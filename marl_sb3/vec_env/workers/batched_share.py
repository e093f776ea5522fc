"""A share that is stepped as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from marl_sb3.envs.registry import batched_factory, make_env
from marl_sb3.errors import described
from marl_sb3.storage.state import StateReader
from marl_sb3.types import Array
from marl_sb3.vec_env.batched_vec_env import BatchedVecEnv
from marl_sb3.vec_env.observations import same
from marl_sb3.vec_env.step import VecStep
from marl_sb3.vec_env.workers.arrays import Board
from marl_sb3.vec_env.workers.plan import SeparateState, SharePlan, ShareState, Shown
from marl_sb3.vec_env.workers.share import Share


class BatchedShare(BatchedVecEnv, Share):
    """A share whose envs are brought back, or lost, together."""

    silent = False

    def __init__(self, plan: SharePlan, board: Board) -> None:
        make_batched = batched_factory(plan.factory)
        assert make_batched is not None, "the main process has seen it"
        make_env(plan.factory, plan.first_index, plan.env_kwargs).close()  # raises better errors for wrong arguments
        super().__init__(make_batched(plan.num_envs, **plan.env_kwargs), plan.seed, plan.first_index)
        self._board = board
        self._lost: str | None = None
        self._settled = False  # whether the main process knows whether there are masks

    def _step(self, actions: Sequence[Array]) -> VecStep:
        if self._lost is not None:
            step = self._first_step(self._shown(), self._all_envs)
            step.episode_done[:] = True
            return step
        self._board.at(self._first_index)
        step = super()._step(actions)
        self._board.advance()
        return step

    def found_masks(self) -> Mapping[int, bool]:
        """See `Share.found_masks`."""
        return {} if self._settled or self._choices is None else {0: bool(self._masked)}

    def settle_masks(self, masked: Mapping[int, bool]) -> VecStep:
        """See `Share.settle_masks`; the batches of all workers have masks, or none has."""
        self._settled = True
        return self.latest

    def share_state(self) -> ShareState:
        """See `Share.share_state`."""
        return self._get_state()

    def set_share_state(self, state: ShareState) -> Mapping[int, str]:
        """See `Share.set_share_state`."""
        assert not isinstance(state, SeparateState)
        return self._set_state(StateReader(state))

    def repeat(self, actions: Sequence[Array]) -> None:
        """See `Share.repeat`."""
        try:
            self.step(actions)
        except Exception as error:
            self._lost = described(error)

    def mark_lost(self, reasons: Mapping[int, str]) -> None:
        """See `Share.mark_lost`."""
        if reasons:
            self._lost = next(iter(reasons.values()))

    def replace_lost(self, shown: Shown | None) -> dict[int, str]:
        """See `Share.replace_lost`."""
        if shown is not None and self._lost is None and not self._shows(shown):
            self._lost = "the same state and actions led to a different state"
        if self._lost is None:
            return {}
        if shown is not None:
            self._episodes = np.maximum(self._episodes, shown.episodes)
        self._begin_episodes(self._all_envs)
        self._latest = self._first_step(self._shown(), self._all_envs)
        return dict.fromkeys(self._all_envs, self._lost)

    def go_on(self) -> None:
        """See `Share.go_on`."""
        self._lost = None

    def _shows(self, shown: Shown) -> bool:
        latest = self.latest
        return np.array_equal(latest.to_act, shown.to_act) and same(latest.observations, shown.observations)
