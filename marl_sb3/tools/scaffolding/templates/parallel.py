"""Two agents on a line that want to meet: an env of PettingZoo, https://pettingzoo.farama.org/api/parallel/."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pettingzoo
from gymnasium import spaces

Observations = dict[str, npt.NDArray[np.float32]]

LEFT, STAY, RIGHT = range(3)
COLOURS = {"left": (29, 91, 214), "right": (230, 96, 18)}


class ExampleEnv(pettingzoo.ParallelEnv[str, npt.NDArray[np.float32], int]):  # type: ignore[misc]
    """Two agents stand on a line of cells; the episode ends when they are in the same one.

    Observation of each agent: [own cell, the other's cell], (2,) float32, from 0 to 1. Actions: `LEFT`, `STAY` and
    `RIGHT`. Each step costs each agent 0.1; the one in which they meet pays 1. After `max_steps` steps, both are
    truncated.

    Args:
        size: number of cells, at least 2.
        max_steps: env steps of an episode.
    """

    # The logs show custom_metrics: here, how many episodes have ended with a meeting.
    metadata: ClassVar[dict[str, Any]] = {
        "name": "ExampleEnv",
        "render_modes": ["rgb_array"],
        "render_fps": 4,
        "custom_metrics": {"met": {"key": "met", "reduce": "last"}},
    }

    def __init__(self, size: int = 9, max_steps: int = 30, render_mode: str | None = None) -> None:
        self.size, self.max_steps, self.render_mode = size, max_steps, render_mode
        self.possible_agents = ["left", "right"]
        self._observations = spaces.Box(0.0, 1.0, (2,), np.float32)
        self._actions = spaces.Discrete(3)

    def observation_space(self, agent: str) -> spaces.Box:
        """What the agent sees."""
        return self._observations

    def action_space(self, agent: str) -> spaces.Discrete:
        """What the agent may do."""
        return self._actions

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, dict[str, Any]]]:
        """Begin an episode; the seed alone says how."""
        places = np.random.default_rng(seed).choice(self.size, 2, replace=False)
        self.cells = dict(zip(self.possible_agents, map(int, places), strict=True))
        self.steps = 0
        self.agents = list(self.possible_agents)  # those that act in the next step
        return self._observe(), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, int]
    ) -> tuple[Observations, dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """All agents act; returns observations, rewards, who is terminated, who is truncated, and infos."""
        for agent, action in actions.items():
            self.cells[agent] = min(max(self.cells[agent] + int(action) - STAY, 0), self.size - 1)
        self.steps += 1
        met = self.cells["left"] == self.cells["right"]
        truncated = not met and self.steps >= self.max_steps  # out of time: the value of what comes next still counts
        agents = self.agents
        if met or truncated:
            self.agents = []
        return (
            self._observe(),
            dict.fromkeys(agents, 1.0 if met else -0.1),
            dict.fromkeys(agents, met),
            dict.fromkeys(agents, truncated),
            {agent: {"met": float(met)} for agent in agents},
        )

    def _observe(self) -> Observations:
        left, right = (self.cells[agent] / (self.size - 1) for agent in self.possible_agents)
        return {"left": np.array([left, right], np.float32), "right": np.array([right, left], np.float32)}

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return a picture of the line, (32, 32 * size, 3) uint8."""
        if self.render_mode != "rgb_array":
            return None
        line = np.full((1, self.size, 3), 255, np.uint8)
        for agent, colour in COLOURS.items():
            line[0, self.cells[agent]] = colour
        return line.repeat(32, axis=0).repeat(32, axis=1)
