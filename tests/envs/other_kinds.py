"""Envs that are no PettingZoo envs, for the tests of their kinds and of all kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class MultiAgentEnv(gymnasium.Env):
    """The interface of RLlib 2.60's class of this name: what envs inherit from it."""

    observation_spaces: Any = None
    action_spaces: Any = None
    agents: Sequence[Any] = []
    possible_agents: Sequence[Any] = []
    observation_space: Any = None
    action_space: Any = None

    def __init__(self) -> None:
        self._agent_ids = getattr(self, "_agent_ids", set())
        self.agents = self.agents or list(self._agent_ids)
        self.possible_agents = self.possible_agents or list(self.agents)

    def get_observation_space(self, agent_id: Any) -> Any:
        return self._space(self.observation_spaces, self.observation_space, agent_id)

    def get_action_space(self, agent_id: Any) -> Any:
        return self._space(self.action_spaces, self.action_space, agent_id)

    def _space(self, by_agent: Any, shared: Any, agent_id: Any) -> Any:
        if by_agent is not None:
            return by_agent[agent_id]
        return shared[agent_id] if isinstance(shared, spaces.Dict) and agent_id in shared.spaces else shared

    def get_agent_ids(self) -> set[Any]:
        return self._agent_ids

    def with_agent_groups(self, groups: Any) -> Any:
        raise NotImplementedError


class Echo(MultiAgentEnv):
    """Agents take turns and are paid for repeating the number that they see; the other one is then shown it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.length = config.get("length", 10)
        self.possible_agents = ["first", "second"]
        self.observation_spaces = self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(3))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.rng, self.step_number = np.random.default_rng(seed), 0
        return self._shown(), {}

    def _shown(self) -> dict[str, int]:
        self.number = int(self.rng.integers(3))
        return {self.possible_agents[self.step_number % 2]: self.number}

    def step(self, action_dict: Any) -> Any:
        ((agent, action),) = action_dict.items()
        reward = {agent: float(action == self.number)}
        self.step_number += 1
        return self._shown(), reward, {"__all__": self.step_number >= self.length}, {}, {}


class Pair(gymnasium.Env[Any, Any]):
    """Two agents are shown a number each, and paid for naming that of the other; three steps are an episode."""

    n_agents = 2
    observation_space = action_space = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(3)])
    field = np.zeros(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 3
        return self._shown(), {"left": 3}

    def step(self, actions: Any) -> Any:
        assert isinstance(actions, tuple)
        paid = [float(action == other) for action, other in zip(actions, reversed(self.shown), strict=True)]
        self.left -= 1
        return self._shown(), paid, self.left == 0, False, {"left": self.left}

    def _shown(self) -> Any:
        self.shown = tuple(int(number) for number in self.np_random.integers(3, size=2))
        return self.shown


gymnasium.register("tuple-pair-v0", Pair)
