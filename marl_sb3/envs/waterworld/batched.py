"""E ponds as arrays: the batched version of `WaterworldEnv`, with the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_sb3.envs.batched import BatchedEnv, BatchedStep
from marl_sb3.envs.waterworld import rules
from marl_sb3.errors import EnvError
from marl_sb3.storage.rng import generator_state, set_generator_state
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array

if TYPE_CHECKING:
    from marl_sb3.envs.waterworld.env import WaterworldEnv

_FARTHEST = 10.0  # limit of positions and speeds in a saved state; in an episode they stay far below it


class BatchedWaterworld(BatchedEnv):
    """E ponds that step together.

    Args:
        template: a pond with the parameters of all of them; it renders them, too.
    """

    def __init__(self, num_envs: int, template: WaterworldEnv) -> None:
        self.num_envs = num_envs
        self.possible_agents = template.possible_agents
        self.metadata = template.metadata
        self.render_mode = template.render_mode
        self.parameters = template.parameters
        self.observation_space = template.observation_space(self.possible_agents[0])
        self.action_space = template.action_space(self.possible_agents[0])
        self._template = template
        self._pond, self._sensors = template.pond, template.sensors
        self._state = rules.empty_state(num_envs, self.parameters)
        self._rngs = [np.random.default_rng(0) for _ in range(num_envs)]
        self._not_terminated = np.zeros((num_envs, len(self.possible_agents)), dtype=np.bool_)

    def reset(self, env_indices: Sequence[int], seeds: Sequence[int]) -> None:
        """See `BatchedEnv.reset`."""
        for env_index, seed in zip(env_indices, seeds, strict=True):
            self._rngs[env_index] = np.random.default_rng(seed)
            rules.begin_episode(self._state, env_index, self._pond, self._rngs[env_index])

    def step(self, actions: Array) -> BatchedStep:
        """See `BatchedEnv.step`."""
        accepted = np.abs(actions) <= 1  # not a NaN either
        if not accepted.all():
            env_index, column, _ = np.argwhere(~accepted)[0]
            where = f"env {env_index}, step {self._state.timesteps[env_index]}"
            received = actions[env_index, column].tolist()
            raise EnvError(f"{where}: {rules.refused_action(self.possible_agents[column], str(received))}")
        rewards, events = rules.step(self._state, self._pond, actions.astype(np.float64), self._rngs)
        ended = self._state.timesteps == self.parameters.max_cycles
        happened = events._asdict()
        return BatchedStep(
            rewards=rewards,
            terminated=self._not_terminated,
            truncated=ended[:, None].repeat(len(self.possible_agents), axis=1),
            infos={
                agent: {key: found[:, column] for key, found in happened.items()}
                for column, agent in enumerate(self.possible_agents)
            },
        )

    def observations(self) -> Array:
        """See `BatchedEnv.observations`."""
        return self._sensors.observations(self._state)

    def get_state(self) -> State:
        """See `BatchedEnv.get_state`."""
        arrays = {name: getattr(self._state, name) for name in rules.PondState.__slots__}
        return {**arrays, "rngs": [generator_state(rng) for rng in self._rngs]}

    def set_state(self, state: StateReader) -> None:
        """See `BatchedEnv.set_state`."""
        read = {}
        for name in rules.PondState.__slots__:
            own = getattr(self._state, name)
            read[name] = state.array(name, own.dtype, own.shape)
            if own.dtype.kind == "f" and (np.abs(read[name]) > _FARTHEST).any():
                raise state.error(name, read[name], f"numbers from {-_FARTHEST:g} to {_FARTHEST:g}")
        limit = self.parameters.max_cycles
        if (read["timesteps"] < 0).any() or (read["timesteps"] >= limit).any():
            raise state.error("timesteps", read["timesteps"], f"numbers from 0 to {limit - 1}")
        rngs = [np.random.default_rng(0) for _ in self._rngs]
        for number, (rng, values) in enumerate(zip(rngs, state.items("rngs", len(rngs)), strict=True)):
            set_generator_state(rng, StateReader(values, f"{state.where}/rngs/{number}"))
        self._state, self._rngs = rules.PondState(**read), rngs

    def render(self, env_index: int) -> Any:
        """See `BatchedEnv.render`."""
        return self._template.render_state(self._state.positions[env_index], self._state.obstacles[env_index])

    def close(self) -> None:
        """Close the window, if one is open."""
        self._template.close()
