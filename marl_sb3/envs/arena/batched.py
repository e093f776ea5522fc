"""E arenas as arrays: the batched version of `ArenaEnv`, with the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_sb3.envs.arena import rules
from marl_sb3.envs.batched import BatchedEnv, BatchedStep
from marl_sb3.errors import EnvError
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array

if TYPE_CHECKING:
    from marl_sb3.envs.arena.env import ArenaEnv


class BatchedArena(BatchedEnv):
    """E arenas that step together.

    Args:
        template: an arena with the settings of all of them; it renders them, too.
    """

    def __init__(self, num_envs: int, template: ArenaEnv) -> None:
        self.num_envs = num_envs
        self.possible_agents = rules.AGENTS
        self.metadata = template.metadata
        self.render_mode = template.render_mode
        self.height, self.width, self.max_timesteps = template.height, template.width, template.max_timesteps
        self.observation_space = template.observation_space(rules.AGENTS[0])
        self.action_space = template.action_space(rules.AGENTS[0])
        self._template = template
        self._destinations = rules.destination_table(self.height, self.width)
        self._state = rules.initial_state(num_envs, self.height, self.width)
        self._limits = np.full(num_envs, self.max_timesteps)  # of the running episodes, once these have begun
        self._coins = np.zeros((num_envs, self.max_timesteps), dtype=np.bool_)
        self._envs = np.arange(num_envs)
        self._not_terminated = np.zeros((num_envs, len(rules.AGENTS)), dtype=np.bool_)

    def configure(self, env_indices: Sequence[int], max_timesteps: int) -> None:
        """See `ArenaEnv.configure`; it is called before these envs are reset."""
        limit = rules.checked_limit(max_timesteps)
        self._limits[env_indices] = limit
        missing = limit - self._coins.shape[1]
        if missing > 0:
            self._coins = np.pad(self._coins, ((0, 0), (0, missing)))

    def reset(self, env_indices: Sequence[int], seeds: Sequence[int]) -> None:
        """See `BatchedEnv.reset`."""
        chosen = np.zeros(self.num_envs, dtype=np.bool_)
        for env_index, seed in zip(env_indices, seeds, strict=True):
            chosen[env_index] = True
            limit = int(self._limits[env_index])
            self._coins[env_index, :limit] = rules.draw_coins(np.random.default_rng(seed), limit)
        rules.reset_envs(self._state, chosen)

    def step(self, actions: Array) -> BatchedStep:
        """See `BatchedEnv.step`."""
        if (actions >> 2).any():  # anything but 0 to 3, negative numbers too
            env_index, column = np.argwhere((actions < 0) | (actions > 3))[0]
            where = f"env {env_index}, step {self._state.timesteps[env_index]}"
            received = actions[env_index, column]
            raise EnvError(f"{where}: {rules.AGENTS[column]} must act with an integer in 0..3; received {received}")
        state = self._state
        outcome = rules.step(state, self._destinations, actions, self._coins[self._envs, state.timesteps])
        truncated = np.equal(state.timesteps, self._limits)[:, None].repeat(len(rules.AGENTS), axis=1)
        collision = outcome.collision
        return BatchedStep(
            rewards=outcome.rewards,
            terminated=self._not_terminated,
            truncated=truncated,
            infos={
                "agent1": {
                    "collision": collision,
                    "new_field": outcome.new_field,
                    "new_field_rewarded": outcome.new_field_rewarded,
                },
                "agent2": {"collision": collision},
            },
        )

    def observations(self) -> Array:
        """See `BatchedEnv.observations`."""
        return rules.observations(self._state)

    def env_states(self) -> Array:
        """See `BatchedEnv.env_states`."""
        return np.concatenate((self._state.cells, self._state.visited), axis=1)

    def get_state(self) -> State:
        """See `BatchedEnv.get_state`."""
        state = self._state
        return {
            "cells": state.cells,
            "visited": state.visited,
            "timesteps": state.timesteps,
            "coins": np.packbits(self._coins[:, : self._limits.max()], axis=1),
        }

    def set_state(self, state: StateReader) -> None:
        """See `BatchedEnv.set_state`."""
        size, limit = self.height * self.width, int(self._limits.max())
        cells = state.array("cells", np.int64, (self.num_envs, len(rules.AGENTS)))
        if (cells < 0).any() or (cells >= size).any() or (cells[:, 0] == cells[:, 1]).any():
            raise state.error("cells", cells, f"two different numbers from 0 to {size - 1} in each row")
        timesteps = state.array("timesteps", np.int64, (self.num_envs,))
        if (timesteps < 0).any() or (timesteps >= self._limits).any():
            raise state.error("timesteps", timesteps, f"numbers from 0 to {limit - 1}, below the limit of each env")
        coins = state.array("coins", np.uint8, (self.num_envs, None))
        if coins.shape[1] < -(-limit // 8):
            raise state.error("coins", coins, f"an array of uint8 ({self.num_envs}, {-(-limit // 8)}), or wider")
        self._state.visited[:] = state.array("visited", np.bool_, (self.num_envs, size))
        self._state.cells[:], self._state.timesteps[:] = cells, timesteps
        self._coins = np.unpackbits(coins, axis=1, count=limit).astype(np.bool_)

    def render(self, env_index: int) -> Any:
        """See `BatchedEnv.render`."""
        return self._template.render_state(self._state.cells[env_index], self._state.visited[env_index])

    def close(self) -> None:
        """Close the window, if one is open."""
        self._template.close()
