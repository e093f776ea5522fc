"""Render one arena: as an RGB image or as text.

`render_rgb` and `render_text` are pure functions of the two agents' cells and the visited cells.
"""

from __future__ import annotations

import numpy as np

from marl_sb3.envs.drawn import Image, blend
from marl_sb3.types import Array, BoolArray

# Blue and orange stay apart for colour-blind eyes; agent1's trail is a tint of agent1's colour.
_LINE_RGB = (214, 219, 227)
_UNVISITED_RGB = (249, 250, 252)
_VISITED_RGB = (196, 220, 252)
_AGENT1_RGB = (29, 91, 214)
_AGENT2_RGB = (230, 96, 18)
_RIM_RGB = (255, 255, 255)

LEGEND = {"agent1": _AGENT1_RGB, "agent2": _AGENT2_RGB, "visited by agent1": _VISITED_RGB}

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
