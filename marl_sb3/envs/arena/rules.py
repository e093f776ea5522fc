"""The rules of the arena for one game; only `draw_coins` draws random numbers.

One source of truth: the `ParallelEnv` runs them in plain Python on an `ArenaState`, and every batched arena runs them
compiled, on records with the same fields. agent1 is at index 0, agent2 at index 1. A cell is one number,
`row * width + column`. Actions: 0 up, 1 right, 2 down, 3 left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_sb3.core.config.values import PositiveInt, accepts
from marl_sb3.envs.drawn import refused
from marl_sb3.types import Array, BoolArray

if TYPE_CHECKING:
    from marl_sb3.envs.compiled.rules import Outcome

AGENTS = ("agent1", "agent2")
# What happens in a step, by agent and key, in the order of `Outcome.infos`. A new field is rewarded in a step without a
# collision.
INFOS = (
    ("agent1", "collision", bool),
    ("agent1", "new_field", bool),
    ("agent1", "new_field_rewarded", bool),
    ("agent2", "collision", bool),
)

MOST_TIMESTEPS = 10**7  # that `configure` accepts, also from a checkpoint, which is untrusted


def checked_limit(max_timesteps: Any) -> int:
    """The limit of an episode's steps that `configure` was given.

    Raises:
        ConfigError: it is not an integer from 1 to `MOST_TIMESTEPS`.
    """
    if not accepts(PositiveInt, max_timesteps) or max_timesteps > MOST_TIMESTEPS:
        raise refused("max_timesteps", f"an integer from 1 to {MOST_TIMESTEPS}", max_timesteps)
    limit: int = max_timesteps
    return limit


def draw_coins(rng: np.random.Generator, max_timesteps: int) -> BoolArray:
    """Draw an episode's coins in one call: (max_timesteps,) bool, True where agent1 moves first.

    Every arena draws its episodes this way, so that the same generator gives the same episode.
    """
    return rng.integers(0, 2, size=max_timesteps, dtype=np.bool_)


@dataclass(slots=True)
class ArenaState:
    """The state of a game, which `step` writes into."""

    height: int  # of the grid, which has at least 2 cells
    width: int
    limit: int  # env steps of the episode
    coins: BoolArray  # (limit,) bool; True where agent1 moves first
    cells: list[int]  # the cells of agent1 and agent2, never the same one
    # (H*W,) bool; the cells that agent1 has visited in this episode. The start cell counts when it moves onto it.
    visited: BoolArray
    timestep: int = 0  # env steps since the start of the episode


def initial_state(height: int, width: int, coins: BoolArray) -> ArenaState:
    """Return an arena at the start of an episode: the agents stand in opposite corners."""
    size = height * width
    return ArenaState(height, width, len(coins), coins, [0, size - 1], np.zeros(size, np.bool_))


def step(state: Any, actions: Any, rng: Any, outcome: Outcome) -> None:
    """Move both agents once, and write rewards, ends and what has happened into the outcome.

    An agent that runs into the other one stays where it is, as one that runs into a wall does.

    Args:
        state: an `ArenaState`, or a record with its fields.
        actions: (2,) integers in 0..3. Not checked.
        rng: not used, since all coins of an episode are drawn when it begins.
        outcome: an `Outcome` of zeros, see `marl_sb3.envs.compiled`.
    """
    first = 0 if state.coins[state.timestep] else 1
    collision = False
    new_field = False
    for mover in (first, 1 - first):
        cell = state.cells[mover]
        row, column = cell // state.width, cell % state.width
        if actions[mover] == 0:
            row = max(row - 1, 0)
        elif actions[mover] == 1:
            column = min(column + 1, state.width - 1)
        elif actions[mover] == 2:
            row = min(row + 1, state.height - 1)
        else:
            column = max(column - 1, 0)
        there = row * state.width + column
        if there == state.cells[1 - mover]:
            collision = True
            continue
        state.cells[mover] = there
        if mover == 0 and state.visited[there] == 0:
            state.visited[there] = 1
            new_field = True
    state.timestep += 1
    rewarded = new_field and not collision
    outcome.rewards[0] = -1.0 if collision else (1.0 if new_field else -0.5)
    outcome.rewards[1] = 1.0 if collision else -0.1
    outcome.truncated[0] = outcome.truncated[1] = state.timestep == state.limit
    outcome.infos[0] = outcome.infos[3] = collision
    outcome.infos[1], outcome.infos[2] = new_field, rewarded


def observe_cells(state: Any, observations: Array) -> None:
    """Write [own cell, other's cell] of both agents, (2, 2)."""
    for agent in range(2):
        observations[agent, 0], observations[agent, 1] = state.cells[agent], state.cells[1 - agent]


def observe_coordinates(state: Any, observations: Array) -> None:
    """Write [own row, own column, other's row, other's column] of both agents, (2, 4)."""
    for agent in range(2):
        for place in range(2):
            cell = state.cells[agent if place == 0 else 1 - agent]
            observations[agent, 2 * place], observations[agent, 2 * place + 1] = cell // state.width, cell % state.width


def observe_window(state: Any, observations: Array) -> None:
    """Write [own cell, other's cell, each cell of a square around its own one visited or not] of both agents.

    The rows of the square come from top to bottom; cells outside the grid count as visited.

    Args:
        state: an `ArenaState`, or a record with its fields.
        observations: (2, 2 + side * side), with an odd side.
    """
    side = int(np.sqrt(observations.shape[1] - 2))
    for agent in range(2):
        cell = state.cells[agent]
        observations[agent, 0], observations[agent, 1] = cell, state.cells[1 - agent]
        top, left = cell // state.width - side // 2, cell % state.width - side // 2
        for place in range(side * side):
            row, column = top + place // side, left + place % side
            is_inside = 0 <= row < state.height and 0 <= column < state.width
            observations[agent, 2 + place] = state.visited[row * state.width + column] if is_inside else 1


OBSERVE = {"cells": observe_cells, "coordinates": observe_coordinates, "window": observe_window}
