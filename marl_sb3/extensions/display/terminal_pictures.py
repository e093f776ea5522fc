"""Pictures made of characters: the built-in envs drawn from their scenes, and images of any other env."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from marl_sb3.extensions.display.screen import ScreenSize

RGB = tuple[int, int, int]
_Grid = npt.NDArray[Any]

_UPPER_HALF = "▀"
_RAMP = " .:-=+*#%@"  # from dark to light
_WHITE, _INK, _FLOOR = (255, 255, 255), (40, 44, 52), (249, 250, 252)
_WATER, _SENSED, _OBSTACLE = (236, 243, 250), (214, 229, 246), (170, 178, 189)
_SHADE = 9  # by which every other cell is darker, so that cells can be counted
_LARGEST_CELL = 4  # lines


class Canvas:
    """Characters with colours, for rich.

    Args:
        lines: number of lines.
        columns: number of characters of a line.
        paper: the colour behind all of them.
    """

    def __init__(self, lines: int, columns: int, paper: RGB = _WHITE) -> None:
        self.characters: _Grid = np.full((lines, columns), " ")
        self.inks: _Grid = np.full((lines, columns, 3), _INK, np.uint8)
        self.papers: _Grid = np.full((lines, columns, 3), paper, np.uint8)

    def put(self, line: int, column: int, character: str, ink: RGB) -> None:
        """Write a character; outside of the canvas, nothing is written."""
        if 0 <= line < self.characters.shape[0] and 0 <= column < self.characters.shape[1]:
            self.characters[line, column], self.inks[line, column] = character, ink

    @property
    def text(self) -> str:
        """The characters without their colours."""
        return "\n".join("".join(line) for line in self.characters)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Give the characters to rich, in runs of the same colours."""
        for characters, inks, papers in zip(self.characters, self.inks.tolist(), self.papers.tolist(), strict=True):
            cells = zip(characters, map(tuple, inks), map(tuple, papers), strict=True)
            for (ink, paper), run in groupby(cells, key=lambda cell: cell[1:]):
                yield Segment("".join(character for character, *_ in run), _style(ink, paper))
            yield Segment.line()


@lru_cache(maxsize=4096)
def _style(ink: RGB, paper: RGB) -> Style:
    return Style(color=Color.from_rgb(*ink), bgcolor=Color.from_rgb(*paper))


# --- Images ----------------------------------------------------------------------------------------------------------


def image_picture(image: npt.NDArray[np.uint8], room: ScreenSize) -> Canvas:
    """Draw an image as large as there is room, two pixels in a character; without colours, by brightness.

    Args:
        image: (height, width, 3) uint8.
    """
    from PIL import Image

    lines, columns = _fitting(image.shape[0] / image.shape[1], room)
    size = columns, lines if room.ascii_only else 2 * lines
    small = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX))
    canvas = Canvas(lines, columns)
    if room.ascii_only:
        levels = (small.mean(axis=2) * len(_RAMP) / 256).astype(int)
        canvas.characters[:] = np.array(list(_RAMP))[levels]
    else:
        canvas.characters[:] = _UPPER_HALF
        canvas.inks, canvas.papers = small[::2], small[1::2]
    return canvas


def _fitting(ratio: float, room: ScreenSize) -> tuple[int, int]:
    """Lines and columns of the largest picture of a height by width; a character is twice as high as wide."""
    columns = max(1, min(room.width, int(2 * room.height / ratio)))
    return max(1, min(room.height, round(columns * ratio / 2))), columns


# --- Scenes of the built-in envs -------------------------------------------------------------------------------------


def scene_picture(scene: Mapping[str, Any], legend: Mapping[str, RGB], room: ScreenSize) -> Canvas | None:
    """Draw the scene of a built-in env; None if it is of another kind, or there is no room for it.

    Args:
        scene: what the env's `scene()` returns.
        legend: colours by name, from the env's metadata.
    """
    draw = _KINDS.get(scene["kind"])
    return None if draw is None else draw(scene, legend, room)


def _arena(scene: Mapping[str, Any], legend: Mapping[str, RGB], room: ScreenSize) -> Canvas | None:
    """A box for each cell, twice as wide as high; those of the agents have their colours and numbers."""
    height, width = scene["height"], scene["width"]
    size = min(_LARGEST_CELL, room.height // height, room.width // (2 * width))
    if size < 1:
        return None
    canvas = Canvas(height * size, 2 * width * size, _FLOOR)
    for cell in scene["visited"]:
        _box(canvas, divmod(cell, width), size, legend["visited by agent1"])
        if room.ascii_only:
            _number(canvas, divmod(cell, width), size, "+")
    odd = np.add.outer(np.arange(height), np.arange(width)) % 2
    canvas.papers -= (_SHADE * odd.repeat(size, 0).repeat(2 * size, 1)[..., None]).astype(np.uint8)
    first, second = (divmod(cell, width) for cell in scene["cells"])
    for number, place in (("1", first), ("2", second)):
        _box(canvas, place, size, legend[f"agent{number}"], only_right=first == second and number == "2")
        _number(canvas, place, size, number, at=1 if first == second and number == "2" else 0)
    return canvas


def _box(canvas: Canvas, place: tuple[int, int], size: int, colour: RGB, only_right: bool = False) -> None:
    line, column = place[0] * size, 2 * place[1] * size
    canvas.papers[line : line + size, column + (size if only_right else 0) : column + 2 * size] = colour


def _number(canvas: Canvas, place: tuple[int, int], size: int, character: str, at: int = 0) -> None:
    canvas.put(place[0] * size + (size - 1) // 2, 2 * place[1] * size + size - 1 + at, character, _WHITE)


def _waterworld(scene: Mapping[str, Any], legend: Mapping[str, RGB], room: ScreenSize) -> Canvas:
    """The pond with what pursuers sense; pursuers are numbers in boxes of their colours, foods rings."""
    lines, columns = _fitting(1.0, room)
    canvas = Canvas(lines, columns, _WATER)
    across, down = (np.arange(columns) + 0.5) / columns, 1.0 - (np.arange(lines) + 0.5) / lines

    def near(place: tuple[float, float], radius: float) -> _Grid:
        return np.hypot(across[None, :] - place[0], down[:, None] - place[1]) < radius

    def put(place: tuple[float, float], character: str, ink: RGB) -> tuple[int, int]:
        line = min(lines - 1, max(0, int((1.0 - place[1]) * lines)))
        column = min(columns - 1, max(0, int(place[0] * columns)))
        canvas.put(line, column, character, ink)
        return line, column

    for place in scene["pursuers"]:
        canvas.papers[near(place, scene["sensor_range"])] = _SENSED
    for place in scene["obstacles"]:
        canvas.papers[near(place, scene["obstacle_radius"])] = _OBSTACLE
        if room.ascii_only:
            canvas.characters[near(place, scene["obstacle_radius"])] = "#"
    for place in scene["poisons"]:
        put(place, "x" if room.ascii_only else "◆", legend["poison"])
    for place in scene["foods"]:
        put(place, "o" if room.ascii_only else "●", legend["food"])
    agents = [name for name in legend if name not in ("food", "poison")]
    for number, (agent, place) in enumerate(zip(agents, scene["pursuers"], strict=True)):
        canvas.papers[put(place, str(number % 10), _WHITE)] = legend[agent]
    return canvas


_KINDS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, RGB], ScreenSize], Canvas | None]] = {
    "arena": _arena,
    "waterworld": _waterworld,
}
