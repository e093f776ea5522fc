"""The vec envs that workers step: a share of separate envs, or a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from marl_sb3.envs.registry import batched_factory, make_env
from marl_sb3.errors import CheckpointError, EnvRaisedError
from marl_sb3.storage.state import StateReader
from marl_sb3.types import Array
from marl_sb3.vec_env.batched_vec_env import BatchedVecEnv
from marl_sb3.vec_env.masks import MaskReader
from marl_sb3.vec_env.observations import same, taken
from marl_sb3.vec_env.slot import EnvSlot, SlotStep
from marl_sb3.vec_env.step import ActionMasks, VecStep, first_step
from marl_sb3.vec_env.sync_vec_env import SyncVecEnv
from marl_sb3.vec_env.workers.arrays import Board
from marl_sb3.vec_env.workers.plan import SeparateState, SharePlan, ShareState, Shown


class FirstEnvMadeError(Exception):
    """The first env of a share was made, and a later one was not."""

    def __init__(self, env_index: int, error: EnvRaisedError) -> None:
        super().__init__(env_index, error)
        self.env_index = env_index
        self.error = error

    def __str__(self) -> str:
        return str(self.error)


class Share(Protocol):
    """What a worker needs of its vec env, besides `MultiAgentVecEnv`."""

    @property
    def silent(self) -> bool:
        """Whether the infos of the latest step are empty dictionaries, one for each agent that acted."""

    def masked(self) -> dict[int, bool]:
        """Return group -> whether an agent that acts has a mask, for groups of which the main process decides."""

    def know_masks(self, masked: Mapping[int, bool]) -> None:
        """Take earlier decisions of the main process, after `set_share_state`."""

    def settle_masks(self, masked: Mapping[int, bool]) -> VecStep:
        """Take the decision of the main process after a step, and return that step with its masks."""

    def share_state(self) -> ShareState:
        """Return the state for `set_share_state`."""

    def set_share_state(self, state: ShareState) -> Mapping[int, str]:
        """See `MultiAgentVecEnv.set_state`."""

    def repeat(self, actions: Sequence[Array]) -> None:
        """Take a step of the past again; an env that fails is lost."""

    def lose_others(self, shown: Shown | None) -> dict[int, str]:
        """Begin new episodes in the envs that are lost, or that show something else than `shown`.

        In the next step, these envs stand still: it reports the reset.

        Returns:
            Row -> reason.
        """

    def go_on(self) -> None:
        """After that step, let them go on."""


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
            self.lost = str(error) if isinstance(error, EnvRaisedError) else f"{type(error).__name__}: {error}"
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
        self._known: dict[int, bool] = {}
        super().__init__(*arguments)

    def _settle(self, number: int, masked: bool) -> None:
        self.found[number] = masked

    def adopt(self, masks: ActionMasks) -> None:
        super().adopt(masks)
        self.settle(self._known)

    def settle(self, masked: Mapping[int, bool]) -> None:
        """Take the decision of the main process."""
        self.found = {}
        self._known.update(masked)
        for number, has_masks in masked.items():
            super()._settle(number, has_masks)

    def forget(self) -> None:
        """Forget what is known."""
        self.found, self._known = {}, {}


class SeparateShare(SyncVecEnv):
    """A `Share` of separate envs."""

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

    def masked(self) -> dict[int, bool]:
        """See `Share.masked`."""
        return self._masks.found

    def know_masks(self, masked: Mapping[int, bool]) -> None:
        """See `Share.know_masks`."""
        self._masks.settle(masked)

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
        self._masks.forget()
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

    def lose_others(self, shown: Shown | None) -> dict[int, str]:
        """See `Share.lose_others`."""
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
            self._take_masks(masks, reset_infos)
            self._latest = first_step(self._shown(), masks, self._turns(), reset_infos)
        return {row: str(slot.lost) for row, slot in lost.items()}

    def mark_lost(self, reasons: Mapping[int, str]) -> None:
        """Note that these envs could not be brought back."""
        for row, why in reasons.items():
            self._slots[row].lost = why

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


class BatchedShare(BatchedVecEnv):
    """A `Share` that is stepped as one batch: its envs are brought back or lost together."""

    silent = False

    def __init__(self, plan: SharePlan, board: Board) -> None:
        make_batched = batched_factory(plan.factory)
        assert make_batched is not None, "the main process has seen it"
        make_env(plan.factory, plan.first_index, plan.env_kwargs).close()  # raises better errors for wrong arguments
        super().__init__(make_batched(plan.num_envs, **plan.env_kwargs), plan.seed, plan.first_index)
        self._board = board
        self._lost: str | None = None
        self._asked = False  # whether the main process knows whether there are masks

    def _step(self, actions: Sequence[Array]) -> VecStep:
        if self._lost is not None:
            step = self._first_step(self._shown(), self._all_envs)
            step.episode_done[:] = True
            return step
        self._board.at(self._first_index)
        step = super()._step(actions)
        self._board.advance()
        return step

    def masked(self) -> dict[int, bool]:
        """See `Share.masked`."""
        return {} if self._asked or self._choices is None else {0: bool(self._masked)}

    def know_masks(self, masked: Mapping[int, bool]) -> None:
        """See `Share.know_masks`."""
        self._asked = bool(masked)

    def settle_masks(self, masked: Mapping[int, bool]) -> VecStep:
        """See `Share.settle_masks`; the batches of all workers have masks, or none has."""
        self._asked = True
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
            self._lost = f"{type(error).__name__}: {error}"

    def lose_others(self, shown: Shown | None) -> dict[int, str]:
        """See `Share.lose_others`."""
        if shown is not None and self._lost is None and not self._shows(shown):
            self._lost = "the same state and actions led to a different state"
        if self._lost is None:
            return {}
        if shown is not None:
            self._episodes = np.maximum(self._episodes, shown.episodes)
        self._begin_episodes(self._all_envs)
        self._latest = self._first_step(self._shown(), self._all_envs)
        return dict.fromkeys(self._all_envs, self._lost)

    def mark_lost(self, reasons: Mapping[int, str]) -> None:
        """Note that the envs could not be brought back."""
        if reasons:
            self._lost = next(iter(reasons.values()))

    def go_on(self) -> None:
        """See `Share.go_on`."""
        self._lost = None

    def _shows(self, shown: Shown) -> bool:
        latest = self.latest
        return np.array_equal(latest.to_act, shown.to_act) and same(latest.observations, shown.observations)


def make_share(plan: SharePlan, board: Board) -> SeparateShare | BatchedShare:
    """Make the envs of a share.

    Raises:
        ConfigError: an argument of the envs is wrong, or the envs differ.
        FirstEnvMadeError: the first env was made, and a later one was not.
    """
    share: SeparateShare | BatchedShare = BatchedShare(plan, board) if plan.batched else SeparateShare(plan, board)
    if plan.horizon is not None:
        share.limit_episodes(plan.horizon)
    return share


def restored(share: SeparateShare | BatchedShare, state: ShareState) -> None:
    """Put a share into an earlier state; envs for which that is not possible are lost."""
    try:
        share.mark_lost(share.set_share_state(state))
    except CheckpointError as error:  # an env's own set_state refused what its get_state had returned
        share.mark_lost(dict.fromkeys(range(share.num_envs), str(error)))
        if share._latest is None:
            share.reset()
