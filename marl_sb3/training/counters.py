"""Counters of a training: since its start, and of the running iteration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from marl_sb3.storage.parts import Fields, Stateful, counts, integer, number, optional
from marl_sb3.types import Array
from marl_sb3.vec_env.step import VecStep


@dataclass
class Counters(Stateful):
    """Counts since the start of the training.

    Attributes:
        agent_steps: (A,) actions of each agent.
        env_steps: env steps, over all envs.
        iteration: iterations done.
        episodes: finished episodes.
        time_s: seconds of rollouts and updates.
        planned_env_steps: env steps at the planned end; None before `learn` was called.
    """

    fields: ClassVar[Fields] = {
        "num_timesteps": integer("env_steps"),
        "iteration": integer("iteration"),
        "num_episodes": integer("episodes"),
        "agent_steps": counts("agent_steps"),
        "time_total_s": number("time_s", 0.0),
        "total_timesteps": optional(integer("planned_env_steps", 1)),
    }

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
        """Make counters of 0 for a number of agents."""
        return cls(np.zeros(number, dtype=np.int64))

    def restart(self) -> None:
        """Set all counters to 0, without a planned end."""
        self.__dict__.update(Counters.of_agents(len(self.agent_steps)).__dict__)

    @property
    def progress_remaining(self) -> float:
        """Return 1 at the start of training, 0 at its planned end, for schedules; 1 without a planned end."""
        if self.planned_env_steps is None:
            return 1.0
        return max(0.0, 1.0 - self.env_steps / self.planned_env_steps)

    def begin_iteration(self) -> None:
        """Begin to count the next iteration."""
        self._before = (self.env_steps, self.agent_steps.copy(), self.episodes)

    def count_step(self, step: VecStep, episodes: int) -> None:
        """Count a step of all envs, and the number of episodes that it ended."""
        self.env_steps += int(np.count_nonzero(step.stepped))
        self.agent_steps += step.acted.sum(axis=0)
        self.episodes += episodes

    @property
    def steps_of_iteration(self) -> int:
        """Env steps of the running iteration."""
        return self.env_steps - self._before[0]

    def of_iteration(self) -> tuple[int, Array, int]:
        """Return env steps, agent steps (A,) and episodes of the running iteration."""
        _, agent_steps, episodes = self._before
        return self.steps_of_iteration, self.agent_steps - agent_steps, self.episodes - episodes

    def state_was_set(self) -> None:
        """A state is saved between iterations."""
        self.begin_iteration()
