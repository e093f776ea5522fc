"""Pictures of one pond: pursuers are discs with their rays, foods rings, poisons diamonds; y points upwards."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marl_sb3.envs.drawn import Image, blend
from marl_sb3.envs.waterworld.rules import FOOD_SIZE, POISON_SIZE, Parameters
from marl_sb3.types import Array

RGB = tuple[int, int, int]

SIDE_PX = 400

# Apart for colour-blind eyes, and poison has a shape of its own.
_WATER_RGB = (247, 250, 252)
_OBSTACLE_RGB = (170, 178, 189)
_FOOD_RGB = (0, 158, 115)
_POISON_RGB = (190, 45, 20)
_PURSUERS_RGB = ((0, 92, 200), (230, 140, 0), (150, 70, 170), (70, 180, 235), (90, 90, 90), (225, 110, 160))
_RAY_OPACITY = 0.25
_DIAMOND = 1.25  # half a diagonal, in radii: as large as the disc


def pursuer_rgb(number: int) -> RGB:
    """Return a pursuer's colour; the seventh has that of the first."""
    return _PURSUERS_RGB[number % len(_PURSUERS_RGB)]


def legend(parameters: Parameters) -> Mapping[str, RGB]:
    """Return the colours of agents and things."""
    agents = {agent: pursuer_rgb(number) for number, agent in enumerate(parameters.agents)}
    return {**agents, "food": _FOOD_RGB, "poison": _POISON_RGB}


def render_rgb(positions: Array, obstacles: Array, parameters: Parameters) -> Image:
    """Draw one pond.

    Args:
        positions: (2, N); x and y of pursuers, foods and poisons in this order, in sides of the square.
        obstacles: (2, n); centres.
        parameters: sizes and numbers.

    Returns:
        (400, 400, 3) uint8.
    """
    image = np.full((SIDE_PX, SIDE_PX, 3), _WATER_RGB, dtype=np.uint8)
    n_pursuers, n_foods, radius = parameters.n_pursuers, parameters.n_evaders, parameters.radius
    for centre in obstacles.T:
        _draw_disc(image, centre, parameters.obstacle_radius, _OBSTACLE_RGB)
    pursuers, foods, poisons = np.split(positions.T, [n_pursuers, n_pursuers + n_foods])
    for number, centre in enumerate(pursuers):
        _draw_rays(image, centre, parameters, pursuer_rgb(number))
    for centre in foods:
        _draw_disc(image, centre, FOOD_SIZE * radius, _FOOD_RGB)
        _draw_disc(image, centre, FOOD_SIZE * radius * 0.55, _WATER_RGB)
    for centre in poisons:
        _draw_diamond(image, centre, POISON_SIZE * radius, _POISON_RGB)
    for number, centre in enumerate(pursuers):
        _draw_disc(image, centre, radius, pursuer_rgb(number))
    return image


def _draw_disc(image: Image, centre: Array, radius: float, colour: RGB) -> None:
    patch, across, up = _patch(image, centre, radius)
    blend(patch, radius * SIDE_PX - np.hypot(across, up), colour)


def _draw_diamond(image: Image, centre: Array, radius: float, colour: RGB) -> None:
    patch, across, up = _patch(image, centre, _DIAMOND * radius)
    blend(patch, (_DIAMOND * radius * SIDE_PX - np.abs(across) - np.abs(up)) / np.sqrt(2), colour)


def _draw_rays(image: Image, centre: Array, parameters: Parameters, colour: RGB) -> None:
    patch, across, up = _patch(image, centre, parameters.sensor_range)
    distances = np.hypot(across, up)
    turns = np.arctan2(up, across) / (2 * np.pi) * parameters.n_sensors
    beside = np.sin((turns - np.rint(turns)) * 2 * np.pi / parameters.n_sensors) * distances  # the nearest ray
    depths = np.minimum(0.5 - np.abs(beside), parameters.sensor_range * SIDE_PX - distances)
    # Rays are not smoothed: that would double the size of a GIF.
    blend(patch, np.where(depths > 0, 0.5, -0.5), colour, _RAY_OPACITY)


def _patch(image: Image, centre: Array, reach: float) -> tuple[Image, Array, Array]:
    """Return the pixels that lie within `reach` of a centre, as a view, and how far they lie from it.

    Returns:
        (h, w, 3) uint8; (1, w) pixels to the right of the centre; (h, 1) pixels above it.
    """
    column, row = centre[0] * SIDE_PX - 0.5, (1 - centre[1]) * SIDE_PX - 0.5
    reach_px = reach * SIDE_PX + 1
    left, right, top, bottom = (
        int(np.clip(edge, 0, SIDE_PX))
        for edge in (column - reach_px, column + reach_px + 2, row - reach_px, row + reach_px + 2)
    )
    return image[top:bottom, left:right], np.arange(left, right)[None] - column, row - np.arange(top, bottom)[:, None]
