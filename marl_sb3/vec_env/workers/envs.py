"""The envs of one worker: a vec env that says what it is doing, and can be brought back in a new worker."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from marl_sb3.envs.registry import make_env
from marl_sb3.errors import CheckpointError, EnvRaisedError, described
from marl_sb3.processes.channel import Heartbeat
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array
from marl_sb3.vec_env.batched_vec_env import BatchedVecEnv, make_batch
from marl_sb3.vec_env.interface import MultiAgentVecEnv
from marl_sb3.vec_env.masks import MaskReader
from marl_sb3.vec_env.observations import same, taken
from marl_sb3.vec_env.separate_envs import SyncVecEnv
from marl_sb3.vec_env.slot import EnvSlot, SlotStep
from marl_sb3.vec_env.step import ActionMasks, VecStep
from marl_sb3.vec_env.workers.spec import Shown, WorkerSpec, WorkerState


class FirstEnvMadeError(Exception):
    """The first env of a worker was made, and a later one was not."""

    def __init__(self, env_index: int, error: EnvRaisedError) -> None:
        super().__init__(env_index, error)
        self.env_index = env_index
        self.error = error

    def __str__(self) -> str:
        return str(self.error)


class WorkerEnvs(MultiAgentVecEnv):
    """The envs of a worker.

    Attributes:
        silent: whether the infos of the latest step are empty dictionaries, one for each agent that acted.
        repeats: whether a step of the past is taken again, in which envs that fail are lost.
        lost: row -> reason, for envs that could not be brought back. They stand still in the next step, which reports
            that they have been reset.
    """

    silent: bool
    repeats = False
    lost: dict[int, str]

    @abstractmethod
    def found_masks(self) -> Mapping[int, bool]:
        """Return group -> whether an agent that acts has a mask, for groups of which the main process decides."""

    @abstractmethod
    def settle_masks(self, masked: Mapping[int, bool]) -> VecStep:
        """Take the decision of the main process, and return the latest step with its masks."""

    @abstractmethod
    def worker_state(self) -> WorkerState:
        """Return the state for `set_worker_state`."""

    @abstractmethod
    def set_worker_state(self, state: WorkerState) -> Mapping[int, str]:
        """See `MultiAgentVecEnv.set_state`."""

    def bring_back(self, state: WorkerState) -> None:
        """Return to an earlier state; envs for which that is not possible are lost."""
        try:
            self.lost.update(self.set_worker_state(state))
        except CheckpointError as error:  # an env's own set_state refused what its get_state had returned
            self._lose_all(str(error))
            if self._latest is None:
                self.reset()

    def repeat(self, actions: Sequence[Array]) -> None:
        """Take a step of the past again."""
        self.repeats = True
        try:
            self.step(actions)
        except Exception as error:
            self._lose_all(described(error))
        finally:
            self.repeats = False

    def replace_lost(self, shown: Shown | None) -> dict[int, str]:
        """Begin new episodes in the envs that are lost, or that show something else than `shown`; returns `lost`."""
        if shown is not None:
            self._lose_different(shown)
        if self.lost:
            self._begin_anew(None if shown is None else shown.episodes)
        return self.lost

    def _lose_all(self, why: str) -> None:
        self.lost.update(dict.fromkeys(range(self.num_envs), why))

    @abstractmethod
    def _lose_different(self, shown: Shown) -> None:
        """Note that those envs are lost that show something else."""

    @abstractmethod
    def _begin_anew(self, episodes: Array | None) -> None:
        """Begin the next episodes, after these, in the envs that are lost."""


def make_worker_envs(spec: WorkerSpec, heartbeat: Heartbeat) -> WorkerEnvs:
    """Make the envs of a worker.

    Raises:
        ConfigError: the arguments of the factory are wrong.
        EnvRaisedError: the first env could not be made.
        FirstEnvMadeError: another one could not.
    """
    return (_BatchedWorkerEnvs if spec.batched else _SeparateWorkerEnvs)(spec, heartbeat)


# --- Separate envs ---------------------------------------------------------------------------------------------------


class _WatchedSlot(EnvSlot):
    """An env slot that says what it is doing, and stands still after its env was lost."""

    envs: WorkerEnvs
    heartbeat: Heartbeat
    silent = True

    def reset(self, options: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        self.heartbeat.enter_env(self.index)
        shown = super().reset(options)
        self.heartbeat.advance()
        return shown

    def step(self, actions: Sequence[Array]) -> SlotStep:
        if self.row in self.envs.lost:
            return self._standing_still()
        acted = self.to_act
        self.heartbeat.enter_env(self.index)
        try:
            step = super().step(actions)
        except Exception as error:
            if not self.envs.repeats:
                raise
            self.envs.lost[self.row] = str(error) if isinstance(error, EnvRaisedError) else described(error)
            return self._standing_still()
        self.heartbeat.advance()
        self.silent = list(step.infos) == acted and not any(step.infos.values())
        return step

    def _standing_still(self) -> SlotStep:
        self.silent = False
        return SlotStep(self.shown, {}, {}, {}, {}, self.reset_infos)


class _OpenMasks(MaskReader):
    """Leaves it to the main process whether a group has masks: that depends on the envs of all workers."""

    def _settle(self, number: int, masked: bool) -> None:
        self.found[number] = masked

    def adopt(self, masks: ActionMasks) -> None:
        self.found: dict[int, bool] = {}
        super().adopt(masks)

    def settle(self, masked: Mapping[int, bool]) -> None:
        """Take the decision of the main process."""
        self.found = {}
        for number, has_masks in masked.items():
            super()._settle(number, has_masks)


class _SeparateWorkerEnvs(SyncVecEnv, WorkerEnvs):
    """Envs that are brought back, or lost, one by one."""

    _slot_class = _WatchedSlot
    _mask_reader_class = _OpenMasks
    _slots: list[_WatchedSlot]  # type: ignore[assignment]
    _masks: _OpenMasks

    def __init__(self, spec: WorkerSpec, heartbeat: Heartbeat) -> None:
        self._spec, self._heartbeat = spec, heartbeat
        super().__init__(self._make, spec.num_envs, spec.seed, spec.first_index)
        self._infos: dict[int, Mapping[str, Any]] = {}
        self.lost = {}
        for slot in self._slots:
            slot.envs, slot.heartbeat = self, heartbeat

    def _make(self, index: int) -> Any:
        self._heartbeat.enter_env(index)
        try:
            env = make_env(self._spec.factory, index, self._spec.env_kwargs)
        except EnvRaisedError as error:
            if index == self._spec.first_index:
                raise
            raise FirstEnvMadeError(index, error) from error
        self._heartbeat.advance()
        return env

    @property
    def silent(self) -> bool:  # type: ignore[override]
        return all(slot.silent for slot in self._slots)

    def found_masks(self) -> Mapping[int, bool]:
        return self._masks.found

    def settle_masks(self, masked: Mapping[int, bool]) -> VecStep:
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

    def worker_state(self) -> WorkerState:
        slots = [slot.get_state() for slot in self._slots]
        episodes = np.array([slot.episode for slot in slots])
        return {"slots": slots, "action_masks": self.latest.action_masks, "episodes": episodes}

    def set_worker_state(self, state: WorkerState) -> Mapping[int, str]:
        self._infos = {}
        return self._set_slots(state["slots"], state["action_masks"])

    def _lose_different(self, shown: Shown) -> None:
        for slot in self._slots:
            if slot.row not in self.lost and not self._shows(slot, shown):
                self.lost[slot.row] = "the same seed and actions led to a different state"

    def _shows(self, slot: EnvSlot, shown: Shown) -> bool:
        if not np.array_equal(self._layout.flags(slot.to_act), shown.to_act[slot.row]):
            return False
        return same(slot.shown_arrays(), [taken(observations, slot.row) for observations in shown.observations])

    def _begin_anew(self, episodes: Array | None) -> None:
        for row in self.lost:
            if episodes is not None:
                self._slots[row].continue_at(int(episodes[row]) + 1)
            self._slots[row].reset()
        self._latest = self._first_step_of(self.lost, self.latest.action_masks)


# --- A batch ---------------------------------------------------------------------------------------------------------


class _BatchedWorkerEnvs(BatchedVecEnv, WorkerEnvs):
    """A batch, whose envs are brought back, or lost, together."""

    silent = False

    def __init__(self, spec: WorkerSpec, heartbeat: Heartbeat) -> None:
        env = make_batch(spec.factory, spec.num_envs, spec.env_kwargs, spec.first_index)
        super().__init__(env, spec.seed, spec.first_index)
        self._heartbeat = heartbeat
        self.lost = {}
        self._settled = False  # whether the main process knows whether there are masks

    def _step(self, actions: Sequence[Array]) -> VecStep:
        if self.lost:
            return replace(self._first_step(), stepped=self._all_stepped, episode_done=self._all_stepped)
        self._heartbeat.enter_env(self._first_index)
        step = super()._step(actions)
        self._heartbeat.advance()
        return step

    def found_masks(self) -> Mapping[int, bool]:
        return {} if self._settled or self._choices is None else {0: bool(self._masked)}

    def settle_masks(self, masked: Mapping[int, bool]) -> VecStep:
        """The batches of all workers have masks, or none has."""
        self._settled = True
        return self.latest

    def worker_state(self) -> WorkerState:
        return self._get_state()

    def set_worker_state(self, state: WorkerState) -> Mapping[int, str]:
        return self._set_state(StateReader(state))

    def _lose_different(self, shown: Shown) -> None:
        latest = self.latest
        if not (np.array_equal(latest.to_act, shown.to_act) and same(latest.observations, shown.observations)):
            self.lost = dict.fromkeys(self._all_envs, "the same state and actions led to a different state") | self.lost

    def _begin_anew(self, episodes: Array | None) -> None:
        if episodes is not None:
            self._episodes = np.maximum(self._episodes, episodes)
        self._begin_episodes(self._all_envs)
        self._latest = self._first_step()


# The states of batches, joined to the state of one large batch and split again. An item of a state that has an entry
# for each env is divided; other items are the same in all batches.


def joined_state(states: Sequence[State], sizes: Sequence[int]) -> State:
    """Join the states of batches, except for `observations` and `action_masks`.

    Args:
        states: what `BatchedVecEnv.get_state` has returned for each batch.
        sizes: number of envs of each batch.
    """
    own = [state["own"] for state in states]
    return {
        **_joined(
            [{key: state[key] for key in ("run_seed", "episodes", "episode_steps", "to_act")} for state in states],
            sizes,
        ),
        "settings": [settings for state in states for settings in state["settings"]],
        "own": None if any(one is None for one in own) else _joined(own, sizes),
    }


def _joined(states: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Join values; arrays that differ in their other axes are filled up with zeros."""
    first = states[0]
    if isinstance(first, Mapping):
        return {key: _joined([state[key] for state in states], sizes) for key in first}
    if isinstance(first, list) and _by_env(states, sizes):
        return [item for state in states for item in state]
    if isinstance(first, np.ndarray) and first.ndim and _by_env(states, sizes):
        return np.concatenate(_same_width(states))
    return first


def _by_env(states: Sequence[Any], sizes: Sequence[int]) -> bool:
    return all(len(state) == size for state, size in zip(states, sizes, strict=True))


def _same_width(arrays: Sequence[Array]) -> list[Array]:
    widths = [max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True)]
    return [
        np.pad(array, [(0, 0), *((0, width - size) for width, size in zip(widths, array.shape[1:], strict=True))])
        for array in arrays
    ]


def split_state(state: Any, num_envs: int, rows: slice) -> Any:
    """Return the part of a state of `num_envs` envs that belongs to some of them."""
    if isinstance(state, Mapping):
        return {key: split_state(value, num_envs, rows) for key, value in state.items()}
    if isinstance(state, list):
        return state[rows] if len(state) == num_envs else [split_state(item, num_envs, rows) for item in state]
    if isinstance(state, np.ndarray) and state.ndim and len(state) == num_envs:
        return state[rows]
    return state
