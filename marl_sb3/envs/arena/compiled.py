"""E arenas as a batch: the rules of `rules.py`, compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
from typing_extensions import override

from marl_sb3.core.state.state import State, StateReader
from marl_sb3.envs.arena import rules
from marl_sb3.envs.compiled.batch import CompiledBatch
from marl_sb3.envs.compiled.random import next_word
from marl_sb3.envs.compiled.rules import CompiledRules
from marl_sb3.types import Array

if TYPE_CHECKING:
    from marl_sb3.envs.arena.env import ArenaEnv


def start(state: Any, rng: Array) -> None:
    """Begin an episode: the agents stand in opposite corners; coins are those of `rules.draw_coins`."""
    state.timestep = 0
    state.cells[0], state.cells[1] = 0, len(state.visited) - 1
    for cell in range(len(state.visited)):
        state.visited[cell] = 0
    word = np.uint64(0)
    for timestep in range(state.limit):  # NumPy takes booleans from the lowest bit of a word on
        word = next_word(rng) if timestep % 64 == 0 else word >> np.uint64(1)
        state.coins[timestep] = word & np.uint64(1)


def compiled_rules(template: ArenaEnv, most_timesteps: int) -> CompiledRules:
    """Return the rules of arenas like a template, with coins for episodes of so many steps."""
    size = template.height * template.width
    state = [
        *((name, np.int64) for name in ("height", "width", "limit", "timestep")),
        ("cells", np.int64, (2,)),
        ("visited", np.uint8, (size,)),
        ("coins", np.uint8, (most_timesteps,)),
    ]
    return CompiledRules(
        agents=rules.AGENTS,
        observation_space=MultiDiscrete([*template.choices]),
        action_space=Discrete(4),
        state=np.dtype(state, align=True),
        start=start,
        step=rules.step,
        observe=rules.OBSERVE[template.observe],
        infos=rules.INFOS,
        settings={"height": template.height, "width": template.width, "limit": most_timesteps},
    )


class BatchedArena(CompiledBatch):
    """E arenas that step together.

    Args:
        template: an arena with the settings of all of them; it renders them, too.
    """

    template: ArenaEnv

    def __init__(self, num_envs: int, template: ArenaEnv) -> None:
        super().__init__(num_envs, compiled_rules(template, template.max_timesteps), template)
        self.height, self.width, self.max_timesteps = template.height, template.width, template.max_timesteps

    def configure(self, env_indices: Sequence[int], max_timesteps: int) -> None:
        """See `ArenaEnv.configure`; it is called before these envs are reset."""
        limit = rules.checked_limit(max_timesteps)
        if limit > self.states.coins.shape[1]:
            before = self.states
            self.use(compiled_rules(self.template, limit))
            for name in ("cells", "visited", "timestep", "limit"):
                self.states[name] = before[name]
            self.states.coins[:, : before.coins.shape[1]] = before.coins
        self.states.limit[env_indices] = limit

    def set_task(self, env_indices: Sequence[int], task: Mapping[str, int]) -> None:
        """See `ArenaEnv.set_task`; it is called before these envs are reset."""
        self.configure(env_indices, **task)

    @override
    def env_states(self) -> Array:
        return np.concatenate((self.states.cells, self.states.visited), axis=1)

    @override
    def get_state(self) -> State:
        states = self.states
        return {
            "cells": np.array(states.cells),
            "visited": states.visited.astype(np.bool_),
            "timesteps": np.array(states.timestep),
            "coins": np.packbits(states.coins[:, : states.limit.max()], axis=1),
        }

    @override
    def set_state(self, state: StateReader) -> None:
        size, limit = self.height * self.width, int(self.states.limit.max())
        cells = state.array("cells", np.int64, (self.num_envs, len(rules.AGENTS)))
        if (cells < 0).any() or (cells >= size).any() or (cells[:, 0] == cells[:, 1]).any():
            raise state.error("cells", cells, f"two different numbers from 0 to {size - 1} in each row")
        timesteps = state.array("timesteps", np.int64, (self.num_envs,))
        if (timesteps < 0).any() or (timesteps >= self.states.limit).any():
            raise state.error("timesteps", timesteps, f"numbers from 0 to {limit - 1}, below the limit of each env")
        coins = state.array("coins", np.uint8, (self.num_envs, None))
        if coins.shape[1] < -(-limit // 8):
            raise state.error("coins", coins, f"an array of uint8 ({self.num_envs}, {-(-limit // 8)}), or wider")
        self._is_observed = False
        self.states.visited[...] = state.array("visited", np.bool_, (self.num_envs, size))
        self.states.cells[...], self.states.timestep[...] = cells, timesteps
        self.states.coins[:, :limit] = np.unpackbits(coins, axis=1, count=limit)
