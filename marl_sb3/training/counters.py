"""How far a training is: what it has counted since its start, and within the running iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from marl_sb3.storage.parts import SavedPart
from marl_sb3.storage.state import State
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
        planned_env_steps: at which the training is to end; None before `learn` has been called.
    """

    agent_steps: Array
    env_steps: int = 0
    iteration: int = 0
    episodes: int = 0
    time_s: float = 0.0
    planned_env_steps: int | None = None
    _before: tuple[int, Array, int] = field(init=False)

    def __post_init__(self) -> None:
        self.begin_iteration()

    @classmethod
    def of_agents(cls, number: int) -> Counters:
        """Nothing counted yet."""
        return cls(np.zeros(number, dtype=np.int64))

    def restart(self) -> None:
        """Count from 0 again; nothing is planned."""
        self.__dict__.update(Counters.of_agents(len(self.agent_steps)).__dict__)

    @property
    def progress_remaining(self) -> float:
        """From 1 at the start of training to 0 at its planned end, for schedules; 1 where no end is planned."""
        if self.planned_env_steps is None:
            return 1.0
        return max(0.0, 1.0 - self.env_steps / self.planned_env_steps)

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
            "total_timesteps": self.planned_env_steps,
        }

    def read_state(self, saved: SavedPart) -> Callable[[], None]:
        """See `Part.read_state`."""
        state = saved.state
        planned = None if state.value("total_timesteps") is None else state.integer("total_timesteps", 1)
        read = Counters(
            state.counts("agent_steps", self.agent_steps.shape),
            state.integer("num_timesteps"),
            state.integer("iteration"),
            state.integer("num_episodes"),
            state.number("time_total_s", 0.0),
            planned,
        )
        return lambda: self.__dict__.update(read.__dict__)
