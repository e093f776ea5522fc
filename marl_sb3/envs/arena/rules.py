"""The rules of the arena for E games at once: arrays in, arrays out; only `draw_coins` draws random numbers.

One source of truth for the `ParallelEnv` (E = 1) and for every batched arena. Every array has the
envs as its leading axis (E); the agent axis holds agent1 at index 0 and agent2 at index 1. A cell is
one number, `row * width + column`. Actions: 0 up, 1 right, 2 down, 3 left.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marl_sb3.errors import ConfigError, shown
from marl_sb3.types import BoolArray

IntArray = npt.NDArray[np.int64]

AGENTS = ("agent1", "agent2")

# For few envs a step takes as long as its calls of NumPy. So there are 0-d arrays, since converting a Python number
# takes a third of a call; and `take`: slices with steps, and indices on two axes, take three times as long.
_N_ACTIONS = np.array(4)
_ONE_STEP = np.array(1)

# Rewards of (agent1, agent2): row 0 for an ordinary step, row 1 for a new field, row -1 for a collision.
_REWARDS = np.array([[-0.5, -0.1], [1.0, -0.1], [-1.0, 1.0]], dtype=np.float64)

_MOVES_FIRST = np.array([[False, True], [True, False]])  # [agent1 is first, agent]
_OWN_THEN_OTHER = np.array([[0, 1], [1, 0]])  # [agent]: whose cells it observes, in order
_OTHER = np.array([1, 0])  # [agent]: the other one


MOST_TIMESTEPS = 10**7  # that `configure` accepts, also from a checkpoint, which is untrusted


def checked_limit(max_timesteps: Any) -> int:
    """The limit of an episode's steps that `configure` was given.

    Raises:
        ConfigError: it is not an integer from 1 to `MOST_TIMESTEPS`.
    """
    if (
        isinstance(max_timesteps, bool)
        or not isinstance(max_timesteps, int)
        or not 1 <= max_timesteps <= MOST_TIMESTEPS
    ):
        raise ConfigError(
            f"max_timesteps must be an integer from 1 to {MOST_TIMESTEPS}; received {shown(max_timesteps)}",
            key="env.max_timesteps",
        )
    return max_timesteps


def draw_coins(rng: np.random.Generator, max_timesteps: int) -> BoolArray:
    """Draw an episode's coins in one call: (max_timesteps,) bool, True where agent1 moves first.

    Every arena draws its episodes this way, so that the same generator gives the same episode.
    """
    return rng.integers(0, 2, size=max_timesteps, dtype=np.bool_)


@dataclass(slots=True)
class ArenaState:
    """The state of E arenas. `step` and `reset_envs` write into these arrays."""

    cells: IntArray  # (E, 2) int64; the cell numbers of agent1 and agent2, never the same cell
    visited: BoolArray  # (E, H*W) bool; the cells that agent1 has visited in this episode
    timesteps: IntArray  # (E,) int64; env steps since the start of the episode


class StepOutcome(NamedTuple):
    """Rewards and events of one step of E arenas, in new arrays."""

    # (E, 2) float64, from {1, -1, -0.5, -0.1}; float64 so that they equal Python's literals
    rewards: npt.NDArray[np.float64]
    collision: BoolArray  # (E,) bool; an agent tried to enter the other's cell
    new_field: BoolArray  # (E,) bool; agent1 marked a cell as visited
    new_field_rewarded: BoolArray  # (E,) bool; a new field in a step without a collision: agent1 got its +1


@lru_cache(maxsize=64)
def destination_table(height: int, width: int) -> IntArray:
    """The cell that each action leads to on an empty grid: (H*W*4,) int64, read-only; entry `cell * 4 + action`.

    A move against a wall leads to the mover's own cell, so that each entry is a neighbour on the grid or the cell
    itself: moving left from column 0 does not lead to the end of the row above.
    """
    rows, columns = np.divmod(np.arange(height * width, dtype=np.int64)[:, None], width)
    target_rows = np.clip(rows + np.array([-1, 0, 1, 0]), 0, height - 1)
    target_columns = np.clip(columns + np.array([0, 1, 0, -1]), 0, width - 1)
    table: IntArray = (target_rows * width + target_columns).reshape(-1)
    table.flags.writeable = False  # One array serves every env of this size.
    return table


def initial_state(num_envs: int, height: int, width: int) -> ArenaState:
    """Return E arenas at the start of an episode; the grid needs at least 2 cells."""
    state = ArenaState(
        cells=np.empty((num_envs, 2), dtype=np.int64),
        visited=np.empty((num_envs, height * width), dtype=np.bool_),
        timesteps=np.empty(num_envs, dtype=np.int64),
    )
    reset_envs(state, np.ones(num_envs, dtype=np.bool_))
    return state


def reset_envs(state: ArenaState, envs: BoolArray) -> None:
    """Start a new episode, in place, in the envs that are marked in `envs`, (E,) bool."""
    state.cells[envs] = (0, state.visited.shape[1] - 1)  # opposite corners
    state.visited[envs] = False  # The start cell too: it counts when agent1 moves onto it.
    state.timesteps[envs] = 0


def observations(state: ArenaState, width: int | None = None) -> IntArray:
    """Return what each agent observes, its own place and the other's, in a new array of int64.

    Args:
        state: E arenas.
        width: W, for places as row and column; None: as cells.

    Returns:
        [own cell, other's cell] of both agents, (E, 2, 2); with `width`, [own row, own column, other's row, other's
        column], (E, 2, 4).
    """
    cells: IntArray = state.cells.take(_OWN_THEN_OTHER, axis=1)
    return cells if width is None else np.stack(np.divmod(cells, width), axis=-1).reshape(-1, 2, 4)


def step(state: ArenaState, destinations: IntArray, actions: IntArray, agent1_first: BoolArray) -> StepOutcome:
    """Move both agents of every arena once, in place, and return their rewards.

    The caller ends episodes, by comparing `state.timesteps` with its limit.

    Args:
        state: E arenas; changed in place.
        destinations: `destination_table(height, width)`.
        actions: (E, 2) integers in 0..3. Not checked: another value would read another cell's entry.
        agent1_first: (E,) bool; True where agent1 moves before agent2.
    """
    cells = state.cells
    destination = destinations.take(cells * _N_ACTIONS + actions)
    unblocked = ~_blocked(cells, destination, agent1_first)
    np.copyto(cells, destination, where=unblocked)
    state.timesteps += _ONE_STEP

    agent1_moved = unblocked[:, 0]
    both_moved = agent1_moved & unblocked[:, 1]
    visited = state.visited.reshape(-1)  # a view
    here = _first_cells(*state.visited.shape) + cells[:, 0]  # agent1's cells
    before = visited[here]
    visited[here] = after = before | agent1_moved
    new_field: BoolArray = after != before
    collision, rewarded = ~both_moved, new_field & both_moved
    rewards = _REWARDS.take(rewarded.view(np.int8) - collision.view(np.int8), axis=0)
    return StepOutcome(rewards, collision, new_field, rewarded)


@lru_cache(maxsize=64)
def _first_cells(num_envs: int, size: int) -> IntArray:
    """Return where the cells of each env begin if those of all envs are in a row, (E,); not to be changed."""
    return np.arange(num_envs) * size


def _blocked(cells: IntArray, destination: IntArray, agent1_first: BoolArray) -> BoolArray:
    """Return which agents are blocked by the other agent: (E, 2) bool.

    The rules check for the other agent before they check for walls. The order does not matter: a wall leaves the mover
    on its own cell, where the other agent cannot be.

    The other agent is still on its old cell if this agent moves first, or if the other moved first and was blocked
    because it wanted this agent's cell. In all other cases the other agent is on its destination.
    """
    wants_old_cell: BoolArray = destination == cells.take(_OTHER, axis=1)
    wants_same_cell: BoolArray = destination == destination.take(_OTHER, axis=1)
    moves_first = _MOVES_FIRST.take(agent1_first, axis=0)
    other_on_old_cell = moves_first | wants_old_cell.take(_OTHER, axis=1)
    return np.where(other_on_old_cell, wants_old_cell, wants_same_cell)
