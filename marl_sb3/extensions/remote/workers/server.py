"""The envs of one worker, which can be brought back in a new worker, and the requests that the worker answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from marl_sb3.core.envs.registry import make_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.vec_env.batched_vec_env import BatchedVecEnv, make_batch
from marl_sb3.core.vec_env.interface import Options
from marl_sb3.core.vec_env.masks import MaskReader
from marl_sb3.core.vec_env.observations import AgentGroup, same, taken
from marl_sb3.core.vec_env.seeding import Stream, spawned
from marl_sb3.core.vec_env.separate_envs import SyncVecEnv
from marl_sb3.core.vec_env.slot import EnvSlot, SlotStep
from marl_sb3.core.vec_env.step import ActionMasks, VecStep
from marl_sb3.doors import ENV_KINDS
from marl_sb3.errors import CheckpointError, EnvRaisedError, described
from marl_sb3.extensions.remote.processes.channel import Heartbeat
from marl_sb3.extensions.remote.processes.messages import not_the_first, packed_result
from marl_sb3.extensions.remote.processes.serve import Link
from marl_sb3.extensions.remote.workers.spec import Event, Shown, WorkerSpec, WorkerState, polling_s
from marl_sb3.extensions.remote.workers.steps import Extras, SharedArrays
from marl_sb3.types import AgentID, Array

# --- Separate envs ---------------------------------------------------------------------------------------------------


class _WatchedSlot(EnvSlot):
    """An env slot that says what it is doing, and stands still after its env was lost."""

    envs: _SeparateWorkerEnvs
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
        """Take the decision of the main process, group -> whether it has masks."""
        self.found = {}
        for number, has_masks in masked.items():
            super()._settle(number, has_masks)


class _SeparateWorkerEnvs(SyncVecEnv):
    """Envs that are brought back, or lost, one by one."""

    repeats = False  # whether a step of the past is taken again, in which envs that fail are lost
    # row -> reason, for envs that could not be brought back. They stand still in the next step, which reports that they
    # have been reset.
    lost: dict[int, str]

    _slot_class = _WatchedSlot
    _mask_reader_class = _OpenMasks
    _slots: list[_WatchedSlot]  # type: ignore[assignment]
    _masks: _OpenMasks

    def __init__(self, spec: WorkerSpec, heartbeat: Heartbeat) -> None:
        self._spec, self._heartbeat = spec, heartbeat
        super().__init__(self._make, spec.num_envs, spec.seed, spec.first_index)
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
            accepted = f"n_workers={self._spec.num_envs_of_all}, one for each env"
            raise not_the_first(error, accepted, "n_workers") from error
        self._heartbeat.advance()
        return env

    @property
    def silent(self) -> bool:
        """Whether the infos of the latest step are empty dictionaries, one for each agent that acted."""
        return all(slot.silent for slot in self._slots)

    def found_masks(self) -> Mapping[int, bool]:
        """Return group -> whether an agent that acts has a mask, for groups of which the main process decides."""
        return self._masks.found

    def settle_masks(self, masked: Mapping[int, bool]) -> VecStep:
        """Take the decision of the main process, and return the latest step with its masks."""
        self._masks.settle(masked)
        latest = self.latest
        of_step = {row: latest.infos[row] for row in np.flatnonzero(latest.stepped).tolist()}
        infos = {**of_step, **latest.reset_infos}
        if len(infos) == self.num_envs:  # else the state that was restored has the masks
            self._latest = replace(latest, action_masks=self._masks.read(self._slots, infos))
        return self.latest

    def worker_state(self) -> WorkerState:
        """Return the state for `set_worker_state`."""
        slots = [slot.get_state() for slot in self._slots]
        episodes = np.array([slot.episode for slot in slots])
        return {"slots": slots, "action_masks": self.latest.action_masks, "episodes": episodes}

    def set_worker_state(self, state: WorkerState) -> Mapping[int, str]:
        """See `MultiAgentVecEnv.set_state`."""
        return self._set_slots(state["slots"], state["action_masks"])

    def lose_different(self, shown: Shown) -> None:
        """Note that those envs are lost that show something else."""
        for slot in self._slots:
            observations = [taken(group, slot.row) for group in shown.observations]
            acts_alike = np.array_equal(self._layout.flags(slot.to_act), shown.to_act[slot.row])
            if slot.row not in self.lost and not (acts_alike and same(slot.shown_arrays(), observations)):
                self.lost[slot.row] = "the same seed and actions led to a different state"

    def begin_anew(self, episodes: Array | None) -> None:
        """Begin the next episodes, after these, in the envs that are lost."""
        for row in self.lost:
            if episodes is not None:
                self._slots[row].continue_at(int(episodes[row]) + 1)
            self._slots[row].reset()
        self._latest = self._first_step_of(self.lost, self.latest.action_masks)


# --- A batch ---------------------------------------------------------------------------------------------------------


class _BatchedWorkerEnvs(BatchedVecEnv):
    """A batch, whose envs are brought back, or lost, together; it does what `_SeparateWorkerEnvs` does."""

    silent = repeats = False
    lost: dict[int, str]

    def __init__(self, spec: WorkerSpec, heartbeat: Heartbeat) -> None:
        env = make_batch(spec.factory, spec.num_envs, spec.env_kwargs, spec.first_index)
        super().__init__(env, spec.seed, spec.first_index)
        self._heartbeat = heartbeat
        self.lost = {}
        self._settled = False  # whether the main process knows whether there are masks

    def _step(self, actions: Sequence[Array]) -> VecStep:
        if self.lost:
            return replace(self._first_step(), stepped=self._all_stepped, episode_done=self._all_stepped)
        self._heartbeat.enter_env(self.first_index)
        step = super()._step(actions)
        self._heartbeat.advance()
        return step

    def found_masks(self) -> Mapping[int, bool]:
        masks = {} if self._settled else dict(enumerate(self.latest.action_masks))
        return {number: mask is not None for number, mask in masks.items() if self.choices[number] is not None}

    def settle_masks(self, masked: Mapping[int, bool]) -> VecStep:
        """The batches of all workers have masks, or none has."""
        self._settled = True
        return self.latest

    def worker_state(self) -> WorkerState:
        return self._get_state()

    def set_worker_state(self, state: WorkerState) -> Mapping[int, str]:
        return self._set_state(StateReader(state))

    def lose_different(self, shown: Shown) -> None:
        latest = self.latest
        if not (np.array_equal(latest.to_act, shown.to_act) and same(latest.observations, shown.observations)):
            why = "the same state and actions led to a different state"
            self.lost = dict.fromkeys(range(self.num_envs), why) | self.lost

    def begin_anew(self, episodes: Array | None) -> None:
        if episodes is not None:
            self.episodes = np.maximum(self.episodes, episodes)
        self._begin_episodes(self._all_envs)
        self._latest = self._first_step()


# --- Requests --------------------------------------------------------------------------------------------------------

# The agents and groups of a vec env, the metadata of its envs, and their render mode.
Facts = tuple[tuple[AgentID, ...], tuple[AgentGroup, ...], Mapping[str, Any], str | None]


class EnvServer:
    """Makes the envs of a worker, and answers requests.

    Args:
        link: to the main process; its descriptor is that of the shared memory.
        spec: of the envs.
    """

    def __init__(self, link: Link, spec: WorkerSpec) -> None:
        self._log = link.log
        self._memory, self._spec = link.descriptors[0], spec
        link.channel.polling_s = polling_s(spec.n_workers)
        np.random.seed(spawned(spec.seed, Stream.NUMBERED, spec.first_index).generate_state(4))  # noqa: NPY002
        for name, kind in spec.kinds.items():
            ENV_KINDS.add(name, kind)
        envs_class = _BatchedWorkerEnvs if spec.batched else _SeparateWorkerEnvs
        self._envs: _SeparateWorkerEnvs | _BatchedWorkerEnvs = envs_class(spec, link.heartbeat)
        # Requests that the envs themselves answer.
        self.limit_episodes, self.show_env_state = self._envs.limit_episodes, self._envs.show_env_state
        self.seed, self.close = self._envs.seed, self._envs.close
        self.episode_seeds = self._envs.episode_seeds

    def facts(self) -> Facts:
        """Return what the envs are."""
        return self._envs.agents, self._envs.groups, self._envs.metadata, self._envs.render_mode

    @cached_property
    def _arrays(self) -> SharedArrays:
        return SharedArrays(self._memory, self._envs.groups, self._spec.num_envs_of_all, self._spec.rows)

    def step(self) -> bytes:
        """Take a step with the actions in the shared arrays; returns the pickled `Extras`, or nothing."""
        step = self._envs.step([np.array(actions) for actions in self._arrays.actions])
        self._arrays.write(step)
        extras = Extras(
            None if self._envs.silent else packed_result(step.infos, "infos"),
            dict(step.final_observations),
            step.reset_infos,
            self._envs.found_masks(),
            self._log.taken(),
            step.env_state,
            step.final_env_states,
        )
        self._envs.lost = {}
        return b"" if extras.is_empty else packed_result(extras, "step")

    def reset(self, options: Sequence[Options] | None) -> tuple[Extras, WorkerState]:
        """See `MultiAgentVecEnv.reset`; what it returns without arrays, and the state afterwards."""
        self._envs.lost = {}
        return self._begun(self._envs.reset(options))

    def _begun(self, step: VecStep) -> tuple[Extras, WorkerState]:
        self._arrays.write(step)
        extras = Extras(reset_infos=step.reset_infos, masked=self._envs.found_masks(), env_state=step.env_state)
        return extras, self.get_state(silently=True)

    def settle_masks(self, masked: Mapping[int, bool]) -> None:
        """Take the decision of the main process: group -> whether it has masks."""
        self._arrays.write(self._envs.settle_masks(masked))

    def call(self, rows: Sequence[int], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """See `MultiAgentVecEnv.call`."""
        return self._envs.call(name, rows, *args, **kwargs)

    def configure(self, rows: Sequence[int], settings: Mapping[str, Any]) -> list[None]:
        """See `MultiAgentVecEnv.configure`."""
        self._envs.configure(rows, **settings)
        return [None for _ in rows]

    def get_state(self, silently: bool) -> WorkerState:
        """Return the state for `set_state`.

        Args:
            silently: without the warnings of envs that cannot say what it is.
        """
        state = self._envs.worker_state()
        if silently:
            self._log.taken()
        return state

    def set_state(self, state: WorkerState) -> tuple[Extras, WorkerState, Mapping[int, str]]:
        """See `MultiAgentVecEnv.set_state`; its first step without arrays, the state afterwards, reasons by row."""
        self._envs.lost = {}
        inexact = self._envs.set_worker_state(state)
        return (*self._begun(self._envs.latest), inexact)

    def restore(self, state: WorkerState | None, events: Sequence[Event], shown: Shown | None) -> dict[int, str]:
        """Bring the envs back, in a new worker.

        Args:
            state: an earlier state; None: they had none.
            events: what happened to them since.
            shown: what they showed last; None: nothing.

        Returns:
            Row -> reason, for envs that could not be brought back; they have begun new episodes.
        """
        if state is not None:
            try:
                self._envs.lost.update(self._envs.set_worker_state(state))
            except CheckpointError as error:  # an env's own set_state refused what its get_state had returned
                self._lose_all(str(error))
                self._envs.reset()
        if shown is not None and shown.masked:
            self._envs.settle_masks(shown.masked)
        for name, arguments in events:
            if name == "step":
                self._repeat(arguments)
            else:
                getattr(self, name)(*arguments)
        if state is None:
            return {}
        if shown is not None:
            self._envs.lose_different(shown)
        if self._envs.lost:
            self._envs.begin_anew(None if shown is None else shown.episodes)
        return self._envs.lost

    def _repeat(self, actions: Sequence[Array]) -> None:
        """Take a step of the past again."""
        self._envs.repeats = True
        try:
            self._envs.step(actions)
        except Exception as error:
            self._lose_all(described(error))
        finally:
            self._envs.repeats = False

    def _lose_all(self, why: str) -> None:
        """Note that all envs are lost, those that are so already for their own reasons."""
        self._envs.lost = dict.fromkeys(range(self._envs.num_envs), why) | self._envs.lost
