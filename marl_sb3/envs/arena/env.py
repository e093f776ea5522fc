"""The arena as a PettingZoo `ParallelEnv`, and as arrays: agent1 discovers cells, agent2 hunts it.

Its rules are in `marl_sb3.envs.arena.rules`; this file gives them agents, spaces, episodes and seeds.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from typing_extensions import override

from marl_sb3.core.config.values import PositiveInt, accepts
from marl_sb3.core.envs.batched import BatchedEnv
from marl_sb3.envs.arena import rules
from marl_sb3.envs.compiled.originals import why_not_own
from marl_sb3.envs.compiled.rules import Outcome
from marl_sb3.envs.drawn import DrawnEnv, Image, Infos, StepResult, blend, refused
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, BoolArray

# Blue and orange stay apart for colour-blind eyes; agent1's trail is a tint of agent1's colour.
_LINE_RGB = (214, 219, 227)
_UNVISITED_RGB = (249, 250, 252)
_VISITED_RGB = (196, 220, 252)
_AGENT1_RGB = (29, 91, 214)
_AGENT2_RGB = (230, 96, 18)
_RIM_RGB = (255, 255, 255)
_ACTION = "with an integer in 0..3"
MOST_WINDOW = 21

LEGEND = {"agent1": _AGENT1_RGB, "agent2": _AGENT2_RGB, "visited by agent1": _VISITED_RGB}


class ArenaEnv(DrawnEnv):
    """Two agents on a grid, from opposite corners: one collects new fields, the other collisions.

    Observation of each agent: [own cell, the other's cell], (2,) int64; a cell is `row * width + column`. As
    "coordinates": [own row, own column, the other's row, the other's column], (4,) int64. As "window": the two cells,
    and of each cell in a square around its own one, row by row, whether agent1 has visited it; those beyond the walls
    count as visited, (2 + window**2,) int64.
    Actions: 0 up, 1 right, 2 down, 3 left. Both agents are truncated after `max_timesteps` steps.
    `infos` says what happened: "collision" for both agents, "new_field" and "new_field_rewarded" (a new
    field without a collision, so agent1 got +1) for agent1.

    Args:
        height: rows of the grid.
        width: columns of the grid; the grid has at least 2 cells.
        max_timesteps: env steps of an episode.
        render_mode: "human" (a window; needs pygame), "rgb_array", "ansi" or None.
        observe: "cells", "coordinates" or "window".
        window: side of that square, odd, from 3 to 21.

    Raises:
        ConfigError: if an argument is not accepted, or pygame is missing for "human".
    """

    title = "arena"
    metadata: ClassVar[dict[str, Any]] = {
        "name": "arena_v0",
        "render_modes": ["human", "rgb_array", "ansi"],
        "render_fps": 10,
        "is_parallelizable": True,
        "legend": LEGEND,
        "reset_options": (),  # it takes none
        "action_names": ("up", "right", "down", "left"),
        "custom_metrics": {
            "new_fields_discovered": {"agent": "agent1", "key": "new_field_rewarded"},
            "num_collisions": {"agent": "agent2", "key": "collision"},
        },
    }

    def __init__(
        self,
        height: int = 10,
        width: int = 10,
        max_timesteps: int = 100,
        render_mode: str | None = None,
        observe: str = "cells",
        window: int = 7,
    ) -> None:
        for name, size in (("height", height), ("width", width), ("max_timesteps", max_timesteps)):
            if not accepts(PositiveInt, size):
                raise refused(name, "an integer >= 1", size)
        if height * width < 2:
            words = f"height * width must be >= 2, a cell per agent; received {height} * {width}"
            raise ConfigError(words, key="env.height")
        super().__init__(render_mode)
        self.height = height
        self.width = width
        self.max_timesteps = max_timesteps

        num_cells = height * width
        if observe not in list(rules.OBSERVE):  # which takes what has no hash, too
            raise refused("observe", "cells, coordinates or window", observe)
        if not isinstance(window, int) or window not in range(3, MOST_WINDOW + 1, 2):
            raise refused("window", f"an odd integer from 3 to {MOST_WINDOW}", window)
        self.observe, self.window = observe, window
        self.possible_agents = list(rules.AGENTS)
        of_places = [height, width] * 2 if observe == "coordinates" else [num_cells] * 2
        # of each number that is observed, how many values it has
        self.choices = (*of_places, *[2] * (window * window if observe == "window" else 0))
        self.observation_spaces = {agent: MultiDiscrete([*self.choices]) for agent in rules.AGENTS}
        self.action_spaces = {agent: Discrete(4) for agent in rules.AGENTS}
        most = np.array([num_cells - 1] * 2 + [1] * num_cells)
        self.state_space = Box(0, most, dtype=np.int64)

    @staticmethod
    def why_not_batched(env_kwargs: Mapping[str, Any]) -> str | None:
        """Say which part of the arena has been replaced, so that the compiled one differs; None: no part."""
        return why_not_own(__name__, rules.__name__)

    @classmethod
    def make_batched(cls, num_envs: int, **env_kwargs: Any) -> BatchedEnv:
        """Return `num_envs` arenas as one batched env."""
        from marl_sb3.envs.arena.compiled import BatchedArena  # numba takes time to import

        return BatchedArena(num_envs, cls(**env_kwargs))

    def _first_state(self, rng: np.random.Generator) -> rules.ArenaState:
        return rules.initial_state(self.height, self.width, rules.draw_coins(rng, self.max_timesteps))

    def _observed(self) -> Array:
        seen = np.empty((2, len(self.choices)), np.int64)
        rules.OBSERVE[self.observe](self._state, seen)
        return seen

    def configure(self, max_timesteps: int) -> None:
        """Change the length of episodes from the next reset on; the sizes would change the spaces, and stay.

        Raises:
            ConfigError: it is not an integer from 1 to `rules.MOST_TIMESTEPS`.
        """
        self.max_timesteps = rules.checked_limit(max_timesteps)

    def get_task(self) -> dict[str, int]:
        """Return the settings of `configure`."""
        return {"max_timesteps": self.max_timesteps}

    def set_task(self, task: Mapping[str, int]) -> None:
        """Do `configure` with the settings in a mapping."""
        self.configure(**task)

    def step(self, actions: dict[AgentID, int]) -> StepResult:
        """Move both agents. `actions` has one integer in 0..3 for each of them.

        Raises:
            EnvError: if no episode is running, or an action is missing or not accepted.
        """
        self._require_episode()
        outcome: Any = Outcome([0.0] * 2, [False] * 2, [False] * 2, [False] * len(rules.INFOS))  # type: ignore[arg-type]
        chosen = self._read(actions, lambda a: range(4).index(operator.index(a)), _ACTION, self._state.timestep)
        rules.step(self._state, chosen, None, outcome)
        infos: Infos = {}
        for (agent, key, _), happened in zip(rules.INFOS, outcome.infos, strict=True):
            infos.setdefault(agent, {})[key] = happened
        return self._stepped(outcome.rewards, outcome.truncated[0], infos)

    def state(self) -> Array:
        """Return [cell of agent1, cell of agent2, each cell visited or not]: (2 + H*W,) int64."""
        self._require_reset("state()")
        return np.concatenate((self._state.cells, self._state.visited))

    @override
    def scene(self) -> dict[str, Any]:
        self._require_reset("scene()")
        return {
            "kind": "arena",
            "height": self.height,
            "width": self.width,
            "cells": list(self._state.cells),
            "visited": np.flatnonzero(self._state.visited).tolist(),
        }

    def cell_actions(self, agent: AgentID) -> list[list[int | None]]:
        """Return rows of cells: the action by which the agent moves there; None if it is not beside its cell."""
        self._require_reset("cell_actions()")
        row, column = divmod(self._state.cells[rules.AGENTS.index(agent)], self.width)
        cells: list[list[int | None]] = [[None] * self.width for _ in range(self.height)]
        for action, (down, right) in enumerate(((-1, 0), (0, 1), (1, 0), (0, -1))):
            if 0 <= row + down < self.height and 0 <= column + right < self.width:
                cells[row + down][column + right] = action
        return cells

    def render_state(self, state: Any) -> Array | str | None:
        """Render the state of an arena of this size: an `ArenaState`, or a record with its fields."""
        cells, visited = np.asarray(state.cells), state.visited
        if self.render_mode == "ansi":
            return render_text(cells, visited, self.width)
        return self._shown(render_rgb(cells, visited, self.width, fitting_cell_px(self.height, self.width)))


# --- Pictures --------------------------------------------------------------------------------------------------------

_MAX_CELL_PX, _MIN_CELL_PX, _MAX_IMAGE_PX = 40, 4, 800


def fitting_cell_px(height: int, width: int) -> int:
    """Return the side of a cell in pixels: 40, less where the image would not fit a screen.

    Always even, since video encoders refuse images with an odd side.
    """
    cell_px = _MAX_IMAGE_PX // max(height, width)
    return min(max(cell_px, _MIN_CELL_PX), _MAX_CELL_PX) // 2 * 2


def render_rgb(cells: Array, visited: BoolArray, width: int, cell_px: int = _MAX_CELL_PX) -> Image:
    """Draw one arena: agent1 a blue disc, agent2 an orange diamond, visited cells in light blue.

    Args:
        cells: (2,) integers; the cell numbers of agent1 and agent2.
        visited: (H*W,) bool; the cells that agent1 has visited.
        width: W, the number of columns.
        cell_px: side of a cell in pixels, at least 4.

    Returns:
        (H*cell_px, W*cell_px, 3) uint8.
    """
    tiles = np.where(visited.reshape(-1, width, 1), _VISITED_RGB, _UNVISITED_RGB).astype(np.uint8)
    image = tiles.repeat(cell_px, axis=0).repeat(cell_px, axis=1)
    for edge in (0, cell_px - 1):  # Each cell has its own frame, so that all cells look the same.
        image[edge::cell_px] = _LINE_RGB
        image[:, edge::cell_px] = _LINE_RGB

    offsets = np.arange(cell_px) - (cell_px - 1) / 2  # of a cell's pixels from its centre
    across, down = offsets[None, :], offsets[:, None]
    disc = np.hypot(across, down) - 0.32 * cell_px
    diamond = (np.abs(across) + np.abs(down) - 0.42 * cell_px) / np.sqrt(2)
    shapes = ((disc, _AGENT1_RGB), (diamond, _AGENT2_RGB))
    for cell, (distance, colour) in zip(cells.tolist(), shapes, strict=True):
        top, left = (number * cell_px for number in divmod(cell, width))
        tile = image[top : top + cell_px, left : left + cell_px]
        blend(tile, cell_px / 20 - distance, _RIM_RGB)
        blend(tile, -distance, colour)
    return image


def render_text(cells: Array, visited: BoolArray, width: int) -> str:
    """Draw one arena as H lines of text: `1` and `2` the agents, `+` visited by agent1, `.` not visited."""
    symbols = np.where(visited, "+", ".")
    symbols[cells] = ("1", "2")
    return "\n".join(" ".join(row) for row in symbols.reshape(-1, width)) + "\n"
