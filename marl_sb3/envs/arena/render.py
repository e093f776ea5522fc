"""Render one arena: as an RGB image, as text, or in a window (which needs pygame).

`render_rgb` and `render_text` are pure functions of the two agents' cells and the visited cells.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, BoolArray

Image: TypeAlias = npt.NDArray[np.uint8]

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

    across, down = _pixel_offsets(cell_px)
    disc = np.hypot(across, down) - 0.32 * cell_px
    diamond = (np.abs(across) + np.abs(down) - 0.42 * cell_px) / np.sqrt(2)
    shapes = ((disc, _AGENT1_RGB), (diamond, _AGENT2_RGB))
    for cell, (distance, colour) in zip(cells.tolist(), shapes, strict=True):
        _paint(_tile(image, cell, width, cell_px), distance, colour)
    return image


def render_text(cells: Array, visited: BoolArray, width: int) -> str:
    """Draw one arena as H lines of text: `1` and `2` the agents, `+` visited by agent1, `.` not visited."""
    symbols = np.where(visited, "+", ".")
    symbols[cells] = ("1", "2")
    return "\n".join(" ".join(row) for row in symbols.reshape(-1, width)) + "\n"


def _pixel_offsets(cell_px: int) -> tuple[Array, Array]:
    """Return how far each pixel of a cell lies from its centre: (1, cell_px) and (cell_px, 1), in pixels."""
    offsets = np.arange(cell_px) - (cell_px - 1) / 2
    return offsets[None, :], offsets[:, None]


def _tile(image: Image, cell: int, width: int, cell_px: int) -> Image:
    """Return the pixels of one cell, as a view."""
    row, column = divmod(cell, width)
    top, left = row * cell_px, column * cell_px
    return image[top : top + cell_px, left : left + cell_px]


def _paint(tile: Image, distance: Array, colour: tuple[int, int, int]) -> None:
    """Blend a shape with a white rim into a tile, in place.

    Args:
        tile: (cell_px, cell_px, 3) uint8.
        distance: (cell_px, cell_px); pixels from the shape's outline, negative inside.
        colour: red, green and blue, 0 to 255.
    """
    rim_px = len(tile) / 20
    for grown_px, rgb in ((rim_px, _RIM_RGB), (0.0, colour)):
        # Anti-aliasing: a pixel on the outline is covered in part.
        cover = np.clip(grown_px + 0.5 - distance, 0.0, 1.0)[..., None]
        tile[:] = np.rint(cover * np.array(rgb) + (1.0 - cover) * tile)


def import_pygame() -> Any:
    """Return the pygame module; raise ConfigError with the way to install it where it is missing."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        with warnings.catch_warnings():
            # pygame 2.6 imports pkg_resources, of which some versions of setuptools warn.
            warnings.filterwarnings("ignore", message=".*pkg_resources.*")
            import pygame
    except ImportError as error:
        raise ConfigError(
            "render_mode 'human' needs pygame; install it with: pip install 'marl_sb3[human]'",
            key="env.render_mode",
        ) from error
    return pygame


class ArenaWindow:
    """A window that shows images at a steady rate; the first image opens it.

    After the user has closed it, further images are dropped and the program goes on.
    """

    def __init__(self, fps: int) -> None:
        self._pygame = import_pygame()
        self._fps = fps
        self._clock = self._pygame.time.Clock()
        self._screen: Any = None
        self.is_closed = False

    def show(self, image: Image) -> None:
        """Show a (height, width, 3) uint8 image, then wait for the rest of 1 / fps seconds."""
        if self.is_closed:
            return
        if self._screen is None:
            self._open(image)
        if self._pygame.event.get(self._pygame.QUIT):
            self.close()
            return
        self._pygame.event.clear()  # Keys and the mouse are not used; a full queue would drop the next QUIT.
        self._pygame.surfarray.blit_array(self._screen, image.swapaxes(0, 1))
        self._pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Close the window; closing it twice is fine."""
        if self._screen is not None:
            # Only the display, because other code in this process may use pygame.
            self._pygame.display.quit()
        self._screen = None
        self.is_closed = True

    def _open(self, image: Image) -> None:
        self._pygame.display.init()
        self._screen = self._pygame.display.set_mode((image.shape[1], image.shape[0]))
        self._pygame.display.set_caption("arena")
