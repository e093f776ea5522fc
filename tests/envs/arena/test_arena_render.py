"""Pictures of the arena: what is drawn where, in every render mode."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.envs.arena.env import fitting_cell_px, render_rgb, render_text
from marl_sb3.envs.drawn import EnvWindow
from marl_sb3.errors import ConfigError

UP, RIGHT, DOWN, LEFT = 0, 1, 2, 3
BLUE, ORANGE = [29, 91, 214], [230, 96, 18]
UNVISITED, VISITED, LINE = [249, 250, 252], [196, 220, 252], [214, 219, 227]


def picture(cells=(0, 5), visited=(), cell_px=20):
    """Return the image of a 2x3 arena."""
    mask = np.zeros(6, dtype=bool)
    mask[list(visited)] = True
    return render_rgb(np.array(cells), mask, width=3, cell_px=cell_px)


def tile(image, row: int, column: int, cell_px: int = 20):
    return image[row * cell_px : (row + 1) * cell_px, column * cell_px : (column + 1) * cell_px]


# The image


def test_image_has_a_square_of_pixels_per_cell():
    assert picture().shape == (40, 60, 3)
    assert picture(cell_px=8).shape == (16, 24, 3)
    assert picture().dtype == np.uint8


def test_agents_are_drawn_in_their_own_cells():
    image = picture(cells=(1, 3))
    assert tile(image, 0, 1)[10, 10].tolist() == BLUE
    assert tile(image, 1, 0)[10, 10].tolist() == ORANGE
    has_blue, has_orange = ((image == colour).all(axis=2) for colour in (BLUE, ORANGE))
    assert has_blue.sum() == tile(has_blue, 0, 1).sum() > 50
    assert has_orange.sum() == tile(has_orange, 1, 0).sum() > 50


def test_agents_differ_in_shape_too():
    image = picture(cells=(0, 5), cell_px=40)
    blue = (tile(image, 0, 0, cell_px=40) == BLUE).all(axis=2)
    orange = (tile(image, 1, 2, cell_px=40) == ORANGE).all(axis=2)
    assert (blue != orange).sum() > 50


@pytest.mark.parametrize("cell_px", [8, 20, 21])
def test_shapes_are_symmetric(cell_px):
    agent_tile = tile(picture(cells=(0, 5), cell_px=cell_px), 0, 0, cell_px)
    np.testing.assert_array_equal(agent_tile, agent_tile[::-1])
    np.testing.assert_array_equal(agent_tile, agent_tile[:, ::-1])
    np.testing.assert_array_equal(agent_tile, agent_tile.swapaxes(0, 1))


def test_visited_cells_are_tinted_and_others_are_not():
    image = picture(visited=(1, 3))
    centres = [[tile(image, row, column)[10, 10].tolist() for column in range(3)] for row in range(2)]
    assert centres == [[BLUE, VISITED, UNVISITED], [VISITED, UNVISITED, ORANGE]]


def test_tint_shows_around_an_agent():
    assert tile(picture(visited=(0,)), 0, 0)[2, 2].tolist() == VISITED
    assert tile(picture(), 0, 0)[2, 2].tolist() == UNVISITED


def test_every_cell_has_a_frame():
    cell = tile(picture(), 0, 1)
    for edge in (cell[0], cell[-1], cell[:, 0], cell[:, -1]):
        assert (edge == LINE).all()


def test_drawing_does_not_change_what_is_drawn():
    cells, visited = np.array([0, 5]), np.array([True] + [False] * 5)
    render_rgb(cells, visited, width=3)
    render_text(cells, visited, width=3)
    assert (cells.tolist(), visited.tolist()) == ([0, 5], [True] + [False] * 5)


@pytest.mark.parametrize(
    ("height", "width", "cell_px"), [(10, 10, 40), (20, 5, 40), (3, 30, 26), (100, 100, 8), (1, 1000, 4)]
)
def test_cells_shrink_on_large_grids_to_an_even_side(height, width, cell_px):
    assert fitting_cell_px(height, width) == cell_px


# The text


def test_text_has_a_line_per_row():
    visited = np.array([True, True, False, False, True, False])
    assert render_text(np.array([1, 5]), visited, width=3) == "+ 1 .\n. + 2\n"


# Through the env


def test_rgb_array_mode_follows_the_episode():
    env = ArenaEnv(height=2, width=3, render_mode="rgb_array")
    env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), picture(cells=(0, 5), cell_px=40))
    env.step({"agent1": RIGHT, "agent2": UP})
    np.testing.assert_array_equal(env.render(), picture(cells=(1, 2), visited=(1,), cell_px=40))


def test_ansi_mode_follows_the_episode():
    env = ArenaEnv(height=2, width=3, render_mode="ansi")
    env.reset(seed=0)
    assert env.render() == "1 . .\n. . 2\n"
    for action1, action2 in ((UP, DOWN), (DOWN, UP)):
        env.step({"agent1": action1, "agent2": action2})
    assert env.render() == "+ . 2\n1 . .\n"


def test_other_modes_do_not_need_pygame(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    env = ArenaEnv(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (400, 400, 3)
    env.close()


def test_human_mode_without_pygame_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ConfigError, match=r"pip install -c constraints.txt '.\[human\]'") as caught:
        ArenaEnv(render_mode="human")
    assert caught.value.key == "env.render_mode"


@pytest.fixture
def pygame(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    module = pytest.importorskip("pygame")
    yield module
    module.display.quit()


def test_human_mode_can_be_closed_twice_and_used_again(pygame):
    env = ArenaEnv(height=1, width=2, render_mode="human")
    env.close()
    env.reset(seed=0)
    env.close()
    env.close()
    env.reset()
    assert pygame.display.get_surface() is not None
    env.close()


def test_window_that_a_person_closes_stays_closed(pygame):
    window = EnvWindow("a title", fps=1000)
    window.show(picture())
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    window.show(picture())
    assert window.is_closed
    window.show(picture())
    assert pygame.display.get_surface() is None


def test_window_keeps_the_pace(pygame, monkeypatch):
    paces = []
    window = EnvWindow("a title", fps=25)
    monkeypatch.setattr(window, "_clock", type("Clock", (), {"tick": lambda self, fps: paces.append(fps)})())
    window.show(picture())
    window.show(picture())
    window.close()
    assert paces == [25, 25]
