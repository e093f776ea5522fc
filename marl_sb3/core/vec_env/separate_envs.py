"""The vec env that consists of E separate `ParallelEnv`s in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from pettingzoo import ParallelEnv
from typing_extensions import override

from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.vec_env.interface import InProcessVecEnv, Options
from marl_sb3.core.vec_env.masks import MaskReader, read_masks
from marl_sb3.core.vec_env.observations import AgentLayout, agent_groups, put, require_same_agents, zero_observations
from marl_sb3.core.vec_env.seeding import episode_seed, fresh_seed
from marl_sb3.core.vec_env.slot import EnvSlot, SlotStep
from marl_sb3.core.vec_env.slot_states import SlotState, pack, unpack
from marl_sb3.core.vec_env.step import (
    NO_FINAL_OBSERVATIONS,
    ActionMasks,
    DictInfos,
    FinalObservations,
    VecStep,
    first_step,
)
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.wrappers.checks import innermost_env, require_interface
from marl_sb3.wrappers.observations import EnvView

EnvFactory = Callable[[int], ParallelEnv]  # env index -> a new env


class SyncVecEnv(InProcessVecEnv):
    """A vec env of E `EnvSlot`s: of any `ParallelEnv`s, also with agents that have different spaces.

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
        self.envs: list[Any] = []
        for index in indices:
            env: Any = make_env(index)
            require_interface(env, index)
            self.envs.append(env)
        views = [EnvView(env) for env in self.envs]
        if len({id(innermost_env(env)) for env in self.envs}) < num_envs:
            raise ConfigError("the env factory returned the same env twice; it has to make a new one at each call")
        for index, view in zip(indices, views, strict=True):
            require_same_agents(view, index, views[0])
        first, agents = views[0], views[0].possible_agents
        both = {agent: (first.observation_space(agent), first.action_space(agent)) for agent in agents}
        self._layout = AgentLayout(agents, agent_groups(both))
        run_seed = fresh_seed() if seed is None else seed
        self._slots = [
            self._slot_class(env, view, indices[row], run_seed, self._layout, row)
            for row, (env, view) in enumerate(zip(self.envs, views, strict=True))
        ]
        self.settings = [slot.settings for slot in self._slots]
        self.num_envs = num_envs
        self.agents, self.groups = tuple(self._layout.possible_agents), self._layout.groups
        self.metadata = dict(self.envs[0].metadata)
        self.render_mode = getattr(self.envs[0].unwrapped, "render_mode", None)
        self._masks = self._mask_reader_class(self._layout, num_envs)
        self._zeros = zero_observations(self.groups, num_envs)
        self._all_stepped = np.ones(num_envs, dtype=np.bool_)
        self._none_done = np.zeros(num_envs, dtype=np.bool_)

    @override
    def episode_seeds(self, env_indices: Sequence[int]) -> list[int | None]:
        slots = [self._slots[env] for env in env_indices]
        return [None if each.episode < 0 else episode_seed(each.run_seed, each.index, each.episode) for each in slots]

    @override
    def limit_episodes(self, env_steps: int) -> None:
        for slot in self._slots:
            slot.horizon = env_steps

    @override
    def show_env_state(self) -> None:
        super().show_env_state()
        for slot in self._slots:
            slot.shows_env_state = True

    def _seed(self, seed: int) -> None:
        for slot in self._slots:
            slot.seed(seed)

    def _call(self, name: str, env_indices: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]:
        return [self._slots[index].call(name, *args, **kwargs) for index in env_indices]

    def _close(self) -> None:
        for slot in self._slots:
            slot.close()

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _reset(self, options: Sequence[Options] | None) -> VecStep:
        self._reset_slots(options or [None] * self.num_envs)
        infos = self._reset_infos(range(self.num_envs))
        return self._first_step(self._masks.read(self._slots, infos), infos)

    def _reset_slots(self, options: Sequence[Options]) -> None:
        for slot, of_env in zip(self._slots, options, strict=True):
            slot.reset(of_env)

    def _reset_infos(self, env_indices: Iterable[int]) -> dict[int, Mapping[str, Any]]:
        return {index: self._slots[index].reset_infos for index in env_indices}

    def _first_step(self, masks: ActionMasks, reset_infos: Mapping[int, Mapping[str, Any]]) -> VecStep:
        """Return the first step after a reset, or after `set_state` in the middle of episodes."""
        in_play = np.array([self._layout.flags(slot.in_play) for slot in self._slots])
        return first_step(self._shown(), masks, self._turns(), reset_infos, self._env_state(), in_play)

    def _step(self, actions: Sequence[Array]) -> VecStep:
        assert self._latest is not None, "reset() comes first"
        acted = to_act = in_play = self._latest.to_act
        observations, steps = self._step_slots(actions)
        infos, turns = [], []
        rewards, places = np.zeros(acted.shape, dtype=np.float32), self._layout.places
        terminated, truncated = np.zeros(acted.shape, dtype=np.bool_), np.zeros(acted.shape, dtype=np.bool_)
        finals: dict[tuple[int, int], Any] = {}
        reset_infos: dict[int, Mapping[str, Any]] = {}
        final_states: dict[int, Array] = {}
        for row, step in enumerate(steps):
            infos.append(step.infos)
            turns.append(self._slots[row].to_act)
            for agent, reward in step.rewards.items():
                rewards[row, places[agent].column] = reward
            for agent, flags in step.ends.items():
                column = places[agent].column
                terminated[row, column], truncated[row, column] = flags
                if agent in step.final_observations:
                    finals[row, column] = step.final_observations[agent]
            if in_play is acted and (step.waited or step.pays_early):
                in_play = acted.copy()
            for agent in step.waited:
                in_play[row, places[agent].column] = True
            if step.reset_infos is not None:
                reset_infos[row] = step.reset_infos
            if step.final_env_state is not None:
                final_states[row] = step.final_env_state
        if turns != self._known_turns:
            to_act = self._turns()
        return VecStep(
            observations=observations,
            action_masks=self._masks.none if self._masks.idle else self._masks_after(infos, reset_infos),
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            acted=acted,
            to_act=to_act,
            in_play=in_play,
            stepped=self._all_stepped,
            episode_done=self._flags(reset_infos) if reset_infos else self._none_done,
            final_observations=FinalObservations(finals) if finals else NO_FINAL_OBSERVATIONS,
            infos=DictInfos(infos),
            reset_infos=reset_infos,
            env_state=self._env_state() if self.shows_env_state else None,
            final_env_states=final_states,
        )

    def _flags(self, env_indices: Iterable[int]) -> BoolArray:
        """Return (E,) bool: True for these envs."""
        flags: BoolArray = np.zeros(self.num_envs, dtype=np.bool_)
        flags[list(env_indices)] = True
        return flags

    def _step_slots(self, actions: Sequence[Array]) -> tuple[tuple[Observations, ...], list[SlotStep]]:
        """Step every env; returns the observations of the agents that act next, per group, and the steps."""
        observations, steps = self._blank(), []
        for slot, of_env in zip(self._slots, zip(*actions, strict=True), strict=True):
            steps.append(slot.step(of_env))
            self._show(slot, observations)
        return observations, steps

    def _blank(self) -> tuple[Observations, ...]:
        """Return zeros in place of observations, in less time than `zero_observations` takes."""
        return tuple(map(deepcopy, self._zeros))

    def _show(self, slot: EnvSlot, observations: tuple[Observations, ...]) -> None:
        """Write the observations of the agents that act next into their places."""
        for agent in slot.to_act:
            place = self._layout.places[agent]
            array = observations[place.group]
            if isinstance(array, dict):
                put(slot.shown[agent], array, (slot.row, place.group_column))
            else:  # the same, without a call
                array[slot.row, place.group_column] = slot.shown[agent]

    def _shown(self) -> tuple[Observations, ...]:
        """Return the present observations per group, (E, A_group, ...)."""
        observations = self._blank()
        for slot in self._slots:
            self._show(slot, observations)
        return observations

    def _turns(self) -> BoolArray:
        """Return the agents that act next, (E, A) bool, in a new array: `VecStep.acted` refers to the old one."""
        self._known_turns = [slot.to_act for slot in self._slots]
        return np.array([self._layout.flags(agents) for agents in self._known_turns])

    def _masks_after(
        self, infos: Sequence[Mapping[str, Any]], reset_infos: Mapping[int, Mapping[str, Any]]
    ) -> ActionMasks:
        """Return the masks after a step, from its infos and those of the resets in it."""
        return self._masks.read(self._slots, {**dict(enumerate(infos)), **reset_infos})

    def _env_state(self) -> Array | None:
        """Return the states of the envs, (E, ...), if they are asked for."""
        if not self.shows_env_state:
            return None
        states = [slot.env_state() for slot in self._slots]
        for slot, state in zip(self._slots, states, strict=True):
            if (state.shape, state.dtype) != (states[0].shape, states[0].dtype):
                kind, first = f"{state.dtype} {state.shape}", f"{states[0].dtype} {states[0].shape}"
                raise slot.error(f"state() is an array of {kind}, that of the first env of {first}")
        return np.stack(states)

    # --- State -------------------------------------------------------------------------------------------------------

    def _get_state(self) -> State:
        states = [slot.get_state() for slot in self._slots]
        return {**pack(states, self.groups), "action_masks": list(self.latest.action_masks)}

    def _set_state(self, state: StateReader) -> Mapping[int, str]:
        states = unpack(state, self._layout, self.num_envs)
        return self._set_slots(states, read_masks(state, self.groups, self.num_envs))

    def _set_slots(self, states: Sequence[SlotState], masks: ActionMasks) -> dict[int, str]:
        """Restore states and masks that have been checked; see `set_state`."""
        outcomes = [slot.set_state(own) for slot, own in zip(self._slots, states, strict=True)]
        inexact = {index: why for index, why in enumerate(outcomes) if why is not None}
        self._masks.adopt(masks)
        self._latest = self._first_step_of(inexact, masks)
        return inexact

    def _first_step_of(self, begun: Iterable[int], masks: ActionMasks) -> VecStep:
        """Return the first step where these envs have begun new episodes; of the others, the masks are known."""
        reset_infos = self._reset_infos(begun)
        read = self._masks.read([self._slots[index] for index in reset_infos], reset_infos)
        is_new = self._flags(reset_infos)[:, None, None]
        masks = tuple(
            old if old is None or new is None else np.where(is_new, new, old)
            for old, new in zip(masks, read, strict=True)
        )
        return self._first_step(masks, reset_infos)
