"""Pictures of Waterworld: where things are drawn, and the modes of the env."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from marl_sb3.envs.waterworld import WaterworldEnv
from marl_sb3.envs.waterworld import env as render
from marl_sb3.envs.waterworld.env import Parameters
from marl_sb3.errors import EnvError

PARAMETERS = Parameters(n_pursuers=2, n_evaders=1, n_poisons=1, obstacle_radius=0.05)
POSITIONS = np.array([[0.25, 0.5, 0.25, 0.75], [0.25, 0.5, 0.75, 0.75]])
OBSTACLES = np.array([[0.9], [0.5]])


def picture() -> Any:
    return render.render_rgb(POSITIONS, OBSTACLES, PARAMETERS)


def colour_at(image: Any, x: float, y: float) -> tuple[int, ...]:
    """Of the pixel there; y points upwards."""
    return tuple(image[int((1 - y) * len(image)), int(x * len(image))].tolist())


def test_things_are_drawn_where_they_are_in_the_colours_of_the_legend() -> None:
    image, legend = picture(), render.legend(PARAMETERS)
    assert image.shape == (400, 400, 3)
    assert image.dtype == np.uint8
    assert colour_at(image, 0.25, 0.25) == legend["pursuer_0"]
    assert colour_at(image, 0.5, 0.5) == legend["pursuer_1"]
    assert colour_at(image, 0.25 + 0.8 * 0.03, 0.75) == legend["food"]  # a ring
    assert colour_at(image, 0.75, 0.75) == legend["poison"]
    assert colour_at(image, 0.9, 0.5 + 0.04) == colour_at(image, 0.9, 0.5 - 0.04) != colour_at(image, 0.9, 0.6)


def test_rays_are_drawn_as_far_as_they_reach() -> None:
    image = picture()
    water = colour_at(image, 0.02, 0.98)
    ray = image[199:201, :, 0].min(axis=0) < water[0]  # those of the second pursuer to the left and to the right
    assert np.flatnonzero(ray)[0] == pytest.approx(400 * 0.3, abs=2)


def test_all_pursuers_differ_in_their_legend_until_there_are_no_more_colours() -> None:
    legend = render.legend(Parameters(n_pursuers=7))
    assert len(set(legend.values())) == 6 + 2
    assert legend["pursuer_6"] == legend["pursuer_0"]


def test_what_lies_outside_the_picture_is_not_drawn() -> None:
    positions = np.array([[-3.0, 5.0, 0.5, 1.02], [0.5, 0.5, -7.0, 1.02]])
    image = render.render_rgb(positions, OBSTACLES, PARAMETERS)
    assert (image[:, :200] == image[0, 0]).all()


def test_rgb_array_mode_follows_the_episode() -> None:
    env = WaterworldEnv(render_mode="rgb_array", max_cycles=2)
    with pytest.raises(EnvError, match=r"render\(\) before the first reset\(\)"):
        env.render()
    env.reset(seed=0)
    first = env.render()
    assert first is not None
    env.step({agent: np.ones(2) for agent in env.agents})
    assert (env.render() != first).any()
    assert env.metadata["legend"] == render.legend(env.parameters)
    assert "legend" not in WaterworldEnv.metadata
