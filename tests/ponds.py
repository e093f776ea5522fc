"""Ponds of Waterworld with everything where a test wants it."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_sb3.envs.waterworld.rules import Events, Parameters, Pond, PondState, empty_state, step

QUIET: dict[str, Any] = {"n_evaders": 0, "n_poisons": 0, "n_obstacles": 0, "obstacle_coord": ()}


class OnePond:
    """One pond; positions and velocities in the order pursuers, foods, poisons.

    Args:
        positions: [x, y] of everything.
        velocities: of everything; default: all at rest.
        **parameters: of `Parameters`; numbers of pursuers, foods, poisons and obstacles are `counts`.
    """

    def __init__(self, positions: Any, velocities: Any = None, **parameters: Any) -> None:
        self.parameters = Parameters(**{**QUIET, **parameters})
        self.pond = Pond(self.parameters)
        self.rng = np.random.default_rng(0)
        self.state: PondState = empty_state(1, self.parameters)
        self.state.positions[0] = np.transpose(positions)
        self.state.velocities[0] = 0.0 if velocities is None else np.transpose(velocities)
        if self.parameters.n_obstacles:
            self.state.obstacles[0] = np.transpose(self.parameters.obstacle_coord)  # type: ignore[arg-type]

    def step(self, *actions: Any) -> tuple[list[float], Events]:
        """Step with an action for each pursuer, none of them by default; return the rewards and what happened."""
        chosen = np.zeros((1, self.parameters.n_pursuers, 2))
        chosen[0, : len(actions)] = actions if actions else 0.0
        rewards, events = step(self.state, self.pond, chosen, [self.rng])
        return rewards[0].tolist(), events

    def put(self, thing: int, x: float, y: float) -> None:
        """Move something by hand."""
        self.state.positions[0, :, thing] = x, y

    def place(self, thing: int) -> list[float]:
        """Return where something is."""
        return list(self.state.positions[0, :, thing])

    def velocity(self, thing: int) -> list[float]:
        """Return its velocity."""
        return list(self.state.velocities[0, :, thing])
