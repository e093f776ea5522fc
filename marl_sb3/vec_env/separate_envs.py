"""Vec envs that consist of E separate `ParallelEnv`s in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pettingzoo import ParallelEnv

from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import AgentID, Array, BoolArray, Observations
from marl_sb3.vec_env.interface import InProcessVecEnv, Options, fresh_seed
from marl_sb3.vec_env.masks import MaskReader, read_masks
from marl_sb3.vec_env.observations import (
    AgentLayout,
    require_same_agents,
    require_separate,
    zero_observations,
)
from marl_sb3.vec_env.slot import EnvSlot, SlotStep
from marl_sb3.vec_env.slot_states import SlotState, pack, unpack
from marl_sb3.vec_env.step import NO_FINAL_OBSERVATIONS, ActionMasks, DictInfos, FinalObservations, VecStep, first_step
from marl_sb3.wrappers.checks import require_interface
from marl_sb3.wrappers.observations import EnvView

EnvFactory = Callable[[int], ParallelEnv]  # env index -> a new env


def _with_interface(env: ParallelEnv, index: int) -> ParallelEnv:
    require_interface(env, index)
    return env


class SeparateEnvs(InProcessVecEnv):
    """A `MultiAgentVecEnv` of E `EnvSlot`s.

    A checkpoint holds the seed of each env's running episode and the actions since its start, which are replayed to
    restore the env. If the env's own class has `get_state() -> tree of plain data and arrays` and `set_state(tree)`,
    these are used instead.

    Args:
        make_env: makes the env of an index; called once for each of the E envs.
        first_index: index of the first env. With workers, each has a part of all envs.

    Raises:
        ConfigError: the envs differ in their agents or spaces, are not separate objects, or have a space of a kind that
            arrays cannot hold.
    """

    _slot_class: type[EnvSlot] = EnvSlot
    _mask_reader_class: type[MaskReader] = MaskReader

    def __init__(self, make_env: EnvFactory, num_envs: int, seed: int | None = None, first_index: int = 0) -> None:
        indices = range(first_index, first_index + num_envs)
        self.envs: Sequence[Any] = [_with_interface(make_env(index), index) for index in indices]
        views = [EnvView(env) for env in self.envs]
        require_separate(self.envs)
        for index, view in zip(indices, views, strict=True):
            require_same_agents(view, index, views[0])
        self._layout = AgentLayout(views[0])
        first = self.envs[0]
        run_seed = fresh_seed() if seed is None else seed
        self._slots = [
            self._slot_class(env, view, indices[row], run_seed, self._layout, row)
            for row, (env, view) in enumerate(zip(self.envs, views, strict=True))
        ]
        self._closed = False
        self.num_envs = num_envs
        self.agents, self.groups = self._layout.agents, self._layout.groups
        self.metadata = dict(first.metadata)
        self.render_mode = getattr(first.unwrapped, "render_mode", None)
        self._masks = self._mask_reader_class(self.groups, num_envs)
        zero_observations(self.groups, num_envs)  # refuses spaces that arrays cannot hold

    def limit_episodes(self, env_steps: int) -> None:
        """See `MultiAgentVecEnv.limit_episodes`."""
        for slot in self._slots:
            slot.horizon = env_steps

    def show_env_state(self) -> None:
        """See `MultiAgentVecEnv.show_env_state`."""
        super().show_env_state()
        for slot in self._slots:
            slot.shows_env_state = True

    def _seed(self, seed: int) -> None:
        for slot in self._slots:
            slot.seed(seed)

    def _reset_infos(self, env_indices: Iterable[int]) -> dict[int, Mapping[str, Any]]:
        return {index: self._slots[index].reset_infos for index in env_indices}

    def _first_step(self, observations: tuple[Observations, ...]) -> VecStep:
        """Return the first step after a reset of all envs."""
        infos = self._reset_infos(range(self.num_envs))
        masks = self._masks.read(self._slots, infos)
        return first_step(observations, masks, self._turns(), infos, self._env_state())

    def _restored_step(self, masks: ActionMasks, reset_infos: Mapping[int, Mapping[str, Any]]) -> VecStep:
        """Return the first step after `set_state`, in the middle of episodes."""
        in_play = np.array([self._layout.flags(slot.in_play) for slot in self._slots])
        return first_step(self._shown(), masks, self._turns(), reset_infos, self._env_state(), in_play)

    def _env_state(self) -> Array | None:
        """Return the states of the envs, (E, ...), if they are asked for."""
        if not self._shows_env_state:
            return None
        states = [slot.env_state() for slot in self._slots]
        for slot, state in zip(self._slots, states, strict=True):
            if (state.shape, state.dtype) != (states[0].shape, states[0].dtype):
                kind, first = f"{state.dtype} {state.shape}", f"{states[0].dtype} {states[0].shape}"
                raise slot.error(f"state() is an array of {kind}, that of the first env of {first}")
        return np.stack(states)

    def _in_play(self, acted: BoolArray, steps: Sequence[SlotStep]) -> BoolArray:
        """Return the agents that were in play in a step, (E, A) bool."""
        waited: BoolArray = np.array([self._layout.flags(step.waited) for step in steps])
        return acted | waited

    def _masks_after(
        self, infos: Sequence[Mapping[str, Any]], reset_infos: Mapping[int, Mapping[str, Any]]
    ) -> ActionMasks:
        """Return the masks after a step, from its infos and those of the resets in it."""
        if self._masks.idle:
            return self._masks.none
        return self._masks.read(self._slots, {**dict(enumerate(infos)), **reset_infos})

    def _turns(self) -> BoolArray:
        """Return the agents that act next, (E, A) bool, in a new array: `VecStep.acted` refers to the old one."""
        return np.array([[agent in slot.to_act for agent in self.agents] for slot in self._slots])

    def _show(self, slot: EnvSlot, observations: tuple[Observations, ...]) -> None:
        """Write the observations of the agents that act next into their places."""
        shown, row, places = slot.shown, slot.row, self._layout.places
        for agent in slot.to_act:
            place, seen = places[agent], shown[agent]
            array = observations[place.group]
            if isinstance(array, dict):
                for key, part in array.items():
                    part[row, place.group_column] = seen[key]
            else:
                array[row, place.group_column] = seen

    def _shown(self) -> tuple[Observations, ...]:
        """Return the present observations per group, (E, A_group, ...)."""
        observations = zero_observations(self.groups, self.num_envs)
        for slot in self._slots:
            self._show(slot, observations)
        return observations

    def _call(self, name: str, env_indices: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]:
        return [self._slots[index].call(name, *args, **kwargs) for index in env_indices]

    def _configure(self, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None:
        for index in env_indices:
            self._slots[index].require_settings(settings)
        for index in env_indices:
            self._slots[index].settings.set_coming(settings)

    # --- State -------------------------------------------------------------------------------------------------------

    def _get_state(self) -> State:
        masks = list(self.latest.action_masks)
        return {**pack(self.slot_states(), self.groups), "action_masks": masks}

    def slot_states(self) -> list[SlotState]:
        """Return the state of each env."""
        return [slot.get_state() for slot in self._slots]

    def _set_state(self, state: StateReader) -> Mapping[int, str]:
        states = unpack(state, self._layout, self.num_envs)
        return self.set_slot_states(states, read_masks(state, self.groups, self.num_envs))

    def set_slot_states(self, states: Sequence[SlotState], masks: ActionMasks) -> dict[int, str]:
        """Restore states and masks that have been checked; see `set_state`."""
        outcomes = [slot.set_state(own) for slot, own in zip(self._slots, states, strict=True)]
        inexact = {index: why for index, why in enumerate(outcomes) if why is not None}
        reset_infos = self._reset_infos(inexact)
        self._masks.adopt(masks)
        self._latest = self._restored_step(self._renewed_masks(masks, reset_infos), reset_infos)
        return inexact

    def _renewed_masks(self, masks: ActionMasks, reset_infos: Mapping[int, Mapping[str, Any]]) -> ActionMasks:
        """Return these masks, with new ones where envs have begun new episodes; these are read from the infos."""
        begun = np.isin(np.arange(self.num_envs), list(reset_infos))
        read = self._masks.read([self._slots[index] for index in reset_infos], reset_infos)
        return tuple(
            old if old is None or new is None else np.where(begun[:, None, None], new, old)
            for old, new in zip(masks, read, strict=True)
        )

    def close(self) -> None:
        """See `MultiAgentVecEnv.close`."""
        if not self._closed:
            self._closed = True
            for slot in self._slots:
                slot.close()


def final_env_states(steps: Sequence[SlotStep]) -> dict[int, Array]:
    """Return the states in which episodes ended, by the index of the env."""
    return {index: step.final_env_state for index, step in enumerate(steps) if step.final_env_state is not None}


class SyncVecEnv(SeparateEnvs):
    """A vec env of any `ParallelEnv`s, also with agents that have different spaces; see `SeparateEnvs`."""

    def __init__(self, make_env: EnvFactory, num_envs: int, seed: int | None = None, first_index: int = 0) -> None:
        super().__init__(make_env, num_envs, seed, first_index)
        self._known_turns = [slot.to_act for slot in self._slots]  # the turns in the latest `to_act`
        self._columns = {agent: place.column for agent, place in self._layout.places.items()}
        self._all_stepped = np.ones(num_envs, dtype=np.bool_)
        self._none_done = np.zeros(num_envs, dtype=np.bool_)
        self._blank = zero_observations(self.groups, self.num_envs)

    def _reset(self, options: Sequence[Options] | None) -> VecStep:
        for slot in self._slots:
            slot.reset(None if options is None else options[slot.row])
        self._known_turns = [slot.to_act for slot in self._slots]
        return self._first_step(self._shown())

    def _step(self, actions: Sequence[Array]) -> VecStep:
        acted = to_act = self.latest.to_act
        observations, rewards = _zeros_as(self._blank), np.zeros(acted.shape, dtype=np.float32)
        terminated, truncated = np.zeros(acted.shape, dtype=np.bool_), np.zeros(acted.shape, dtype=np.bool_)
        steps: list[SlotStep] = []
        infos: list[Mapping[str, Any]] = []
        turns: list[list[AgentID]] = []
        finals: dict[tuple[int, int], Any] = {}
        reset_infos: dict[int, Mapping[str, Any]] = {}
        waited = False
        for slot, of_env in zip(self._slots, zip(*actions, strict=True), strict=True):
            step, row = slot.step(of_env), slot.row
            for agent, reward in step.rewards.items():
                rewards[row, self._columns[agent]] = reward
            for agent, flags in step.ends.items():
                column = self._columns[agent]
                terminated[row, column], truncated[row, column] = flags
                if agent in step.final_observations:
                    finals[row, column] = step.final_observations[agent]
            if step.reset_infos is not None:
                reset_infos[row] = step.reset_infos
            self._show(slot, observations)
            steps.append(step)
            infos.append(step.infos)
            turns.append(slot.to_act)
            waited = waited or bool(step.waited)
        if turns != self._known_turns:
            self._known_turns, to_act = turns, self._turns()
        return VecStep(
            observations=observations,
            action_masks=self._masks_after(infos, reset_infos),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            acted=acted,
            to_act=to_act,
            in_play=self._in_play(acted, steps) if waited else acted,
            stepped=self._all_stepped,
            episode_done=self._done(reset_infos) if reset_infos else self._none_done,
            final_observations=FinalObservations(finals) if finals else NO_FINAL_OBSERVATIONS,
            infos=DictInfos(infos),
            reset_infos=reset_infos,
            env_state=self._env_state() if self._shows_env_state else None,
            final_env_states=final_env_states(steps) if self._shows_env_state else {},
        )

    def _done(self, env_indices: Collection[int]) -> BoolArray:
        done: BoolArray = np.zeros(self.num_envs, dtype=np.bool_)
        done[list(env_indices)] = True
        return done


def _zeros_as(groups: Sequence[Observations]) -> tuple[Observations, ...]:
    """Return zeros of the shapes and dtypes of these observations, in less time than `zero_observations` takes."""
    zeros: list[Observations] = []
    for group in groups:
        if isinstance(group, dict):
            zeros.append({key: np.zeros(array.shape, array.dtype) for key, array in group.items()})
        else:
            zeros.append(np.zeros(group.shape, group.dtype))
    return tuple(zeros)
