"""The caption below a film's frames: episode, step, return of each agent so far, legend of colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marl_sb3.types import Array

Colour = tuple[int, int, int]

_NARROWEST_PX = 120  # narrower frames get no caption: its text would not be readable
_MOST_AGENTS = 8  # of more agents, the sum of returns is shown
_CELL_PX, _PADDING_PX = 150, 6
_PAPER: Colour = (255, 255, 255)
_INK: Colour = (40, 44, 52)
_RIM: Colour = (190, 196, 204)


@dataclass(frozen=True)
class Scene:
    """What a caption says about a frame.

    Attributes:
        episode: counted from 1.
        step: env steps since the start of the episode.
        returns: return of each agent so far.
    """

    episode: int
    step: int
    returns: Mapping[str, float]


def captioned(frame: Array, scene: Scene, legend: Mapping[str, Colour]) -> Array:
    """Return a frame with a caption below it; its height is the same for all scenes of the same agents.

    Args:
        frame: (height, width, 3) uint8; returned unchanged if it is too narrow for text.
        legend: colours by name. An agent's colour is drawn before its return; all others are listed at the end.

    Returns:
        (height + caption, width, 3) uint8.
    """
    width = frame.shape[1]
    if width < _NARROWEST_PX:
        return frame
    cells = _cells(scene, legend)
    columns = max(1, width // _CELL_PX)
    size_px = 14 if width >= 2 * _CELL_PX else 11
    line_px = size_px + _PADDING_PX
    height = (-(-len(cells) // columns) * line_px + _PADDING_PX + 1) // 2 * 2  # even: video encoders need even sides
    return np.concatenate([frame, _strip(cells, columns, (width, height), size_px)])


def is_picture(frame: Any) -> bool:
    """Whether a frame is an array (height, width, 3) of uint8."""
    return isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3


def legend_of(metadata: Mapping[str, Any]) -> dict[str, Colour]:
    """The legend in an env's metadata: `metadata["legend"] = {"agent1": (29, 91, 214), ...}`, RGB from 0 to 255."""
    entries = metadata.get("legend")
    if not isinstance(entries, Mapping) or not all(map(_is_colour, entries.values())):
        return {}  # the env uses this key for something else
    return {str(name): tuple(colour) for name, colour in entries.items()}


def _is_colour(value: Any) -> bool:
    is_triple = isinstance(value, Sequence) and len(value) == 3
    return is_triple and all(isinstance(part, int) and 0 <= part < 256 for part in value)


def _cells(scene: Scene, legend: Mapping[str, Colour]) -> list[tuple[str, Colour | None]]:
    """Texts, each with the colour drawn before it."""
    cells: list[tuple[str, Colour | None]] = [(f"episode {scene.episode}, step {scene.step}", None)]
    if len(scene.returns) > _MOST_AGENTS:
        cells.append((f"{len(scene.returns)} agents: {_score(sum(scene.returns.values()))}", None))
        known: Mapping[str, Colour] = legend
    else:
        cells += [(f"{agent}: {_score(value)}", legend.get(agent)) for agent, value in scene.returns.items()]
        known = {name: colour for name, colour in legend.items() if name not in scene.returns}
    return cells + list(known.items())


def _score(value: float) -> str:
    text = f"{round(value, 2) + 0.0:.2f}"  # never -0
    return text.rstrip("0").rstrip(".")


def _strip(cells: Sequence[tuple[str, Colour | None]], columns: int, size: tuple[int, int], font_px: int) -> Array:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", size, _PAPER)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(font_px)
    draw.line((0, 0, size[0], 0), fill=_RIM)
    width_px = size[0] // columns
    for index, (text, colour) in enumerate(cells):
        row, column = divmod(index, columns)
        left, top = column * width_px + _PADDING_PX, row * (font_px + _PADDING_PX) + _PADDING_PX // 2 + 1
        if colour is not None:
            draw.rectangle((left, top + 3, left + font_px - 4, top + font_px - 1), fill=colour, outline=_RIM)
            left += font_px + 2
        room = (column + 1) * width_px - left
        draw.text((left, top), _cut(text, lambda text: draw.textlength(text, font), room), fill=_INK, font=font)
    return np.asarray(image)


def _cut(text: str, length: Any, room: int) -> str:
    """Shorten a text that is too long in its middle, because a return stands at its end."""
    shown, head = text, len(text) - 1
    while head > 0 and length(shown) > room:
        head -= 1
        name, colon, rest = text.rpartition(":")
        shown = f"{name[:head]}..{colon}{rest}" if colon and head < len(name) else f"{text[:head]}.."
    return shown
