"""Ponds of Waterworld with everything where a test wants it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_sb3.compiling import OBSERVE
from marl_sb3.envs.waterworld import WaterworldEnv
from marl_sb3.types import Array

QUIET: dict[str, Any] = {"n_evaders": 0, "n_poisons": 0, "n_obstacles": 0, "obstacle_coord": ()}


class Events(NamedTuple):
    """What happened to each pursuer in a step: (1, P) arrays."""

    food_encounters: Array
    fed: Array
    captures: Array
    poison_hits: Array


class OnePond:
    """One pond; positions and velocities in the order pursuers, foods, poisons.

    Args:
        positions: [x, y] of everything.
        velocities: of everything; default: all at rest.
        **parameters: of `Parameters`; numbers of pursuers, foods, poisons and obstacles are `counts`.
    """

    def __init__(self, positions: Any, velocities: Any = None, **parameters: Any) -> None:
        self.env = WaterworldEnv(**{**QUIET, **parameters})
        self.env.reset(seed=0)
        self.state = self.env.batch.states
        self.state.positions[0] = np.transpose(positions)
        self.state.velocities[0] = 0.0 if velocities is None else np.transpose(velocities)

    def step(self, *actions: Any) -> tuple[list[float], Events]:
        """Step with an action for each pursuer, none of them by default; return the rewards and what happened."""
        chosen = np.zeros((1, len(self.env.possible_agents), 2))
        chosen[0, : len(actions)] = actions if actions else 0.0
        made = self.env.batch.step(chosen)
        happened = [[made.infos[agent][key] for agent in self.env.possible_agents] for key in Events._fields]
        return made.rewards[0].tolist(), Events(*np.moveaxis(np.array(happened, dtype=int), 2, 1))

    def seen(self, agent: int = 0) -> Array:
        """Return what an agent sees."""
        self.env.batch.run(OBSERVE)
        return self.env.batch.observed[0, agent].copy()

    def put(self, thing: int, x: float, y: float) -> None:
        """Move something by hand."""
        self.state.positions[0, :, thing] = x, y

    def place(self, thing: int) -> list[float]:
        """Return where something is."""
        return list(self.state.positions[0, :, thing])

    def velocity(self, thing: int) -> list[float]:
        """Return its velocity."""
        return list(self.state.velocities[0, :, thing])
