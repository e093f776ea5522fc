"""E separate `ParallelEnv`s, stepped one after the other into the same arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.interface import Options
from marl_sb3.vec_env.observations import zero_observations, zeros_as
from marl_sb3.vec_env.separate_envs import EnvFactory, SeparateEnvs, final_env_states
from marl_sb3.vec_env.slot import EnvSlot, SlotStep
from marl_sb3.vec_env.step import DictInfos, FinalObservations, VecStep


@dataclass
class _Arrays:
    """The arrays of a `VecStep` while it is filled."""

    observations: tuple[Observations, ...]
    rewards: Array
    terminated: BoolArray
    truncated: BoolArray
    infos: list[Mapping[str, Any]] = field(default_factory=list)
    final_observations: dict[tuple[int, int], Any] = field(default_factory=dict)
    reset_infos: dict[int, Mapping[str, Any]] = field(default_factory=dict)


class SyncVecEnv(SeparateEnvs):
    """A vec env of any `ParallelEnv`s, also with agents that have different spaces; see `SeparateEnvs`."""

    def __init__(self, make_env: EnvFactory, num_envs: int, seed: int | None = None, first_index: int = 0) -> None:
        super().__init__(make_env, num_envs, seed, first_index)
        self._known_turns = [slot.to_act for slot in self._slots]  # the turns in the latest `to_act`
        self._all_stepped = np.ones(num_envs, dtype=np.bool_)
        self._blank = zero_observations(self.groups, self.num_envs)

    def _reset(self, options: Sequence[Options] | None) -> VecStep:
        for slot in self._slots:
            slot.reset(None if options is None else options[slot.row])
        self._known_turns = [slot.to_act for slot in self._slots]
        return self._first_step(self._shown())

    def _step(self, actions: Sequence[Array]) -> VecStep:
        acted = to_act = self.latest.to_act
        arrays = self._blank_arrays()
        steps = [slot.step([group[slot.row] for group in actions]) for slot in self._slots]
        for slot, step in zip(self._slots, steps, strict=True):
            self._write(slot, step, arrays)
        turns = [slot.to_act for slot in self._slots]
        if any(new is not old for new, old in zip(turns, self._known_turns, strict=True)):
            self._known_turns = turns
            to_act = self._turns()
        episode_done = np.zeros(self.num_envs, dtype=np.bool_)
        if arrays.reset_infos:
            episode_done[list(arrays.reset_infos)] = True
        return VecStep(
            observations=arrays.observations,
            action_masks=self._masks_after(arrays.infos, arrays.reset_infos),
            rewards=arrays.rewards,
            terminated=arrays.terminated,
            truncated=arrays.truncated,
            acted=acted,
            to_act=to_act,
            in_play=self._in_play(acted, steps),
            stepped=self._all_stepped,
            episode_done=episode_done,
            final_observations=FinalObservations(arrays.final_observations),
            infos=DictInfos(arrays.infos),
            reset_infos=arrays.reset_infos,
            env_state=self._env_state(),
            final_env_states=final_env_states(steps),
        )

    def _write(self, slot: EnvSlot, step: SlotStep, arrays: _Arrays) -> None:
        """Write the result of a step of one env into the arrays."""
        index, places = slot.row, self._layout.places
        rewards = arrays.rewards[index]
        for agent, reward in step.rewards.items():
            rewards[places[agent].column] = reward
        for agent, (terminated, truncated) in step.ends.items():
            column = places[agent].column
            arrays.terminated[index, column], arrays.truncated[index, column] = terminated, truncated
            if agent in step.final_observations:
                arrays.final_observations[index, column] = step.final_observations[agent]
        arrays.infos.append(step.infos)
        if step.reset_infos is not None:
            arrays.reset_infos[index] = step.reset_infos
        self._show(slot, arrays.observations)

    def _blank_arrays(self) -> _Arrays:
        shape = (self.num_envs, len(self.agents))
        return _Arrays(
            zeros_as(self._blank),
            np.zeros(shape, dtype=np.float32),
            np.zeros(shape, dtype=np.bool_),
            np.zeros(shape, dtype=np.bool_),
        )
