"""An env with any number of agents that computes almost nothing, to measure what training itself costs.

An agent sees eight numbers. Its reward is 1 if its action is the index of the largest of the first five, otherwise 0.
The numbers are drawn when an episode begins and rotate by one place in every step. All agents are truncated together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from pettingzoo import ParallelEnv

from marl_sb3.core.envs.batched import BatchedEnv, BatchedStep
from marl_sb3.types import AgentID, Array, FloatArray

NUMBERS, ACTIONS, EPISODE_STEPS = 8, 5, 100
METADATA = {"name": "many_agents_v0", "render_modes": [], "is_parallelizable": True}

Infos = dict[AgentID, dict[str, Any]]


class BatchedManyAgents(BatchedEnv):
    """`num_envs` envs as arrays.

    Args:
        num_envs: number of envs, E.
        agents: number of agents in each, A.
    """

    def __init__(self, num_envs: int, agents: int = 2) -> None:
        self.num_envs = num_envs
        self.possible_agents = [f"agent{index}" for index in range(agents)]
        self.metadata = METADATA
        self.render_mode = None
        self.observation_space = Box(-1.0, 1.0, (NUMBERS,))
        self.action_space = Discrete(ACTIONS)
        self._numbers: FloatArray = np.zeros((num_envs, agents, NUMBERS), dtype=np.float32)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._not_terminated = np.zeros((num_envs, agents), dtype=np.bool_)

    def reset(self, env_indices: Sequence[int], seeds: Sequence[int]) -> None:
        """See `BatchedEnv.reset`."""
        for env_index, seed in zip(env_indices, seeds, strict=True):
            rng = np.random.default_rng(seed)
            self._numbers[env_index] = rng.uniform(-1.0, 1.0, self._numbers.shape[1:])
            self._steps[env_index] = 0

    def step(self, actions: Array) -> BatchedStep:
        """See `BatchedEnv.step`."""
        rewards = (actions == self._numbers[:, :, :ACTIONS].argmax(axis=2)).astype(np.float32)
        self._numbers = np.roll(self._numbers, 1, axis=2)
        self._steps += 1
        truncated = (self._steps == EPISODE_STEPS)[:, None].repeat(len(self.possible_agents), axis=1)
        return BatchedStep(rewards, self._not_terminated, truncated, infos={})

    def observations(self) -> FloatArray:
        """See `BatchedEnv.observations`."""
        return self._numbers.copy()


class ManyAgents(ParallelEnv[AgentID, FloatArray, int]):  # type: ignore[misc]  # PettingZoo ships no types
    """One env as a `ParallelEnv`.

    Args:
        agents: number of agents.
    """

    metadata: ClassVar[dict[str, Any]] = METADATA
    render_mode = None

    def __init__(self, agents: int = 2) -> None:
        self._env = BatchedManyAgents(1, agents)
        self._rng = np.random.default_rng()
        self.possible_agents = list(self._env.possible_agents)
        self.agents: list[AgentID] = []

    @classmethod
    def make_batched(cls, num_envs: int, **env_kwargs: Any) -> BatchedEnv:
        """Make `num_envs` envs as arrays."""
        return BatchedManyAgents(num_envs, **env_kwargs)

    def observation_space(self, agent: AgentID) -> Space[Any]:
        """Return the observation space, the same for all agents."""
        return self._env.observation_space

    def action_space(self, agent: AgentID) -> Space[Any]:
        """Return the action space, the same for all agents."""
        return self._env.action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, FloatArray], Infos]:
        """Begin an episode; without a seed, a random one is drawn."""
        self._env.reset([0], [int(self._rng.integers(2**32)) if seed is None else seed])
        self.agents = list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[AgentID, int]) -> tuple[dict[AgentID, Any], ...]:
        """Step all agents."""
        step = self._env.step(np.array([[actions[agent] for agent in self.possible_agents]]))
        ended = bool(step.truncated[0, 0])
        self.agents = [] if ended else self.agents
        rewards = dict(zip(self.possible_agents, step.rewards[0].tolist(), strict=True))
        return self._seen(), rewards, self._for_all(False), self._for_all(ended), {a: {} for a in self.possible_agents}

    def _seen(self) -> dict[AgentID, FloatArray]:
        return dict(zip(self.possible_agents, self._env.observations()[0], strict=True))

    def _for_all(self, value: bool) -> dict[AgentID, bool]:
        return dict.fromkeys(self.possible_agents, value)
