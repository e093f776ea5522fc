"""How far a training is: what it has counted since its start, and within the running iteration."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array
from marl_sb3.vec_env.step import VecStep


@dataclass
class Counters:
    """Counts since the start of the training.

    Attributes:
        agent_steps: (A,) actions of each agent.
        env_steps: env steps, over all envs.
        iteration: iterations done.
        episodes: finished episodes.
        time_s: seconds of rollouts and updates.
    """

    agent_steps: Array
    env_steps: int = 0
    iteration: int = 0
    episodes: int = 0
    time_s: float = 0.0
    _before: tuple[int, Array, int] = field(init=False)

    def __post_init__(self) -> None:
        self.begin_iteration()

    @classmethod
    def of_agents(cls, number: int) -> Counters:
        """Nothing counted yet."""
        return cls(np.zeros(number, dtype=np.int64))

    def begin_iteration(self) -> None:
        """What is counted from here on belongs to the next iteration."""
        self._before = (self.env_steps, self.agent_steps.copy(), self.episodes)

    def count_step(self, step: VecStep, episodes: int) -> None:
        """All envs have taken a step, which ended so many episodes."""
        self.env_steps += len(step.acted)
        self.agent_steps += step.acted.sum(axis=0)
        self.episodes += episodes

    def of_iteration(self) -> tuple[int, Array, int]:
        """Env steps, agent steps (A,) and episodes of the iteration."""
        env_steps, agent_steps, episodes = self._before
        return self.env_steps - env_steps, self.agent_steps - agent_steps, self.episodes - episodes

    def get_state(self) -> State:
        """Between iterations."""
        return {
            "num_timesteps": self.env_steps,
            "iteration": self.iteration,
            "num_episodes": self.episodes,
            "agent_steps": self.agent_steps,
            "time_total_s": self.time_s,
        }

    def set_state(self, state: StateReader) -> None:
        """Go on from where `get_state` was called.

        Raises:
            CheckpointError: it is not the state of such counters.
        """
        self.env_steps = state.integer("num_timesteps")
        self.iteration = state.integer("iteration")
        self.episodes = state.integer("num_episodes")
        self.agent_steps = state.counts("agent_steps", self.agent_steps.shape)
        self.time_s = state.number("time_total_s", 0.0)
        self.begin_iteration()
