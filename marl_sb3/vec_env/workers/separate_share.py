"""A share of separate envs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marl_sb3.envs.registry import make_env
from marl_sb3.errors import EnvRaisedError, described
from marl_sb3.types import Array
from marl_sb3.vec_env.masks import MaskReader
from marl_sb3.vec_env.observations import same, taken
from marl_sb3.vec_env.slot import EnvSlot, SlotStep
from marl_sb3.vec_env.step import ActionMasks, VecStep, first_step
from marl_sb3.vec_env.sync_vec_env import SyncVecEnv
from marl_sb3.vec_env.workers.arrays import Board
from marl_sb3.vec_env.workers.plan import SeparateState, SharePlan, ShareState, Shown
from marl_sb3.vec_env.workers.share import FirstEnvMadeError, Share


class _WatchedSlot(EnvSlot):
    """An env slot that says what it is doing, and stands still after its env was lost."""

    board: Board
    silent = True
    repeats = False
    lost: str | None = None

    def reset(self, options: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        self.board.at(self.index)
        shown = super().reset(options)
        self.board.advance()
        return shown

    def step(self, actions: Sequence[Array]) -> SlotStep:
        if self.lost is not None:
            return self._standing_still()
        acted = self.to_act
        self.board.at(self.index)
        try:
            step = super().step(actions)
        except Exception as error:
            if not self.repeats:
                raise
            self.lost = str(error) if isinstance(error, EnvRaisedError) else described(error)
            return self._standing_still()
        self.board.advance()
        self.silent = list(step.infos) == acted and not any(step.infos.values())
        return step

    def _standing_still(self) -> SlotStep:
        self.silent = False
        return SlotStep(self.shown, {}, {}, {}, {}, self.reset_infos)


class _OpenMasks(MaskReader):
    """Leaves it to the main process whether a group has masks: that depends on the envs of all workers."""

    def __init__(self, *arguments: Any) -> None:
        self.found: dict[int, bool] = {}
        super().__init__(*arguments)

    def _settle(self, number: int, masked: bool) -> None:
        self.found[number] = masked

    def adopt(self, masks: ActionMasks) -> None:
        self.found = {}
        super().adopt(masks)

    def settle(self, masked: Mapping[int, bool]) -> None:
        """Take the decision of the main process."""
        self.found = {}
        for number, has_masks in masked.items():
            super()._settle(number, has_masks)


class SeparateShare(SyncVecEnv, Share):
    """A share whose envs are brought back, or lost, one by one."""

    _slot_class = _WatchedSlot
    _mask_reader_class = _OpenMasks
    _slots: list[_WatchedSlot]  # type: ignore[assignment]
    _masks: _OpenMasks

    def __init__(self, plan: SharePlan, board: Board) -> None:
        super().__init__(_watched(plan, board), plan.num_envs, plan.seed, plan.first_index)
        self._infos: dict[int, Mapping[str, Any]] = {}
        for slot in self._slots:
            slot.board = board

    @property
    def silent(self) -> bool:
        """See `Share.silent`."""
        return all(slot.silent for slot in self._slots)

    def found_masks(self) -> Mapping[int, bool]:
        """See `Share.found_masks`."""
        return self._masks.found

    def settle_masks(self, masked: Mapping[int, bool]) -> VecStep:
        """See `Share.settle_masks`."""
        self._masks.settle(masked)
        if len(self._infos) == self.num_envs:
            self._latest = replace(self.latest, action_masks=self._masks.read(self._slots, self._infos))
        return self.latest

    def _masks_after(self, infos: Sequence[Mapping[str, Any]], reset_infos: Mapping[int, Mapping[str, Any]]) -> Any:
        if not self._masks.idle:
            self._infos = {**dict(enumerate(infos)), **reset_infos}
        return super()._masks_after(infos, reset_infos)

    def _reset_infos(self, env_indices: Any) -> dict[int, Mapping[str, Any]]:
        found = super()._reset_infos(env_indices)
        self._infos.update(found)
        return found

    def share_state(self) -> SeparateState:
        """See `Share.share_state`."""
        return SeparateState(self.slot_states(), self.latest.action_masks)

    def set_share_state(self, state: ShareState) -> Mapping[int, str]:
        """See `Share.set_share_state`."""
        assert isinstance(state, SeparateState)
        self._infos = {}
        return self.set_slot_states(state.slots, state.action_masks)

    def repeat(self, actions: Sequence[Array]) -> None:
        """See `Share.repeat`."""
        for slot in self._slots:
            slot.repeats = True
        try:
            self.step(actions)
        finally:
            for slot in self._slots:
                slot.repeats = False

    def mark_lost(self, reasons: Mapping[int, str]) -> None:
        """See `Share.mark_lost`."""
        for row, why in reasons.items():
            self._slots[row].lost = why

    def replace_lost(self, shown: Shown | None) -> dict[int, str]:
        """See `Share.replace_lost`."""
        for slot in self._slots:
            if shown is not None and slot.lost is None and not self._shows(slot, shown):
                slot.lost = "the same seed and actions led to a different state"
        lost = {slot.row: slot for slot in self._slots if slot.lost is not None}
        for row, slot in lost.items():
            if shown is not None:
                slot.continue_at(int(shown.episodes[row]) + 1)
            slot.reset()
        if lost:
            masks, reset_infos = self.latest.action_masks, self._reset_infos(lost)
            self._renew_masks(masks, reset_infos)
            self._latest = first_step(self._shown(), masks, self._turns(), reset_infos)
        return {row: str(slot.lost) for row, slot in lost.items()}

    def go_on(self) -> None:
        """See `Share.go_on`."""
        for slot in self._slots:
            slot.lost = None

    def _shows(self, slot: _WatchedSlot, shown: Shown) -> bool:
        if not np.array_equal(self._layout.flags(slot.to_act), shown.to_act[slot.row]):
            return False
        wanted = [taken(observations, slot.row) for observations in shown.observations]
        return same(slot.shown_arrays(), wanted)


def _watched(plan: SharePlan, board: Board) -> Callable[[int], Any]:
    """Return the function that makes the env of an index, and says so."""

    def make(index: int) -> Any:
        board.at(index)
        try:
            env = make_env(plan.factory, index, plan.env_kwargs)
        except EnvRaisedError as error:
            if index == plan.first_index:
                raise
            raise FirstEnvMadeError(index, error) from error
        board.advance()
        return env

    return make
