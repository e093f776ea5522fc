"""Views at a pace: keys, pictures of characters, and what is shown when."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.envs.waterworld import WaterworldEnv
from marl_sb3.extensions.display import Room, image_picture, scene_picture
from marl_sb3.tools.looking import playback
from marl_sb3.tools.looking.playback import (
    Playback,
    Stage,
    TerminalKeys,
    TerminalStage,
    View,
    ViewerLeftError,
    names_of_keys,
    why_no_terminal,
    why_no_window,
)

BLUE, ORANGE, TINT = (29, 91, 214), (230, 96, 18), (196, 220, 252)
LEGEND = {"agent1": BLUE, "agent2": ORANGE, "visited by agent1": TINT}


def arena(cells: list[int], visited: list[int]) -> dict[str, Any]:
    return {"kind": "arena", "height": 2, "width": 3, "cells": cells, "visited": visited}


# --- Pictures --------------------------------------------------------------------------------------------------------


def test_arena_is_drawn_as_large_as_it_fits() -> None:
    small = scene_picture(arena([0, 5], [0, 1]), LEGEND, Room(columns=6, lines=2, plain=True))
    assert small is not None
    assert small.text == "1 +   \n    2 "
    large = scene_picture(arena([0, 5], [0, 1]), LEGEND, Room(columns=12, lines=9))
    assert large is not None
    assert large.text.split("\n") == [" 1          ", " " * 12, "         2  ", " " * 12]
    assert [tuple(large.papers[0, column]) for column in (0, 4)] == [BLUE, tuple(part - 9 for part in TINT)]
    assert tuple(large.papers[3, 8]) == ORANGE
    assert scene_picture(arena([0, 5], []), LEGEND, Room(columns=5, lines=2)) is None  # no room


def test_two_agents_in_a_cell_share_it() -> None:
    picture = scene_picture(arena([4, 4], [4]), LEGEND, Room(columns=6, lines=2))
    assert picture is not None
    assert picture.text == "      \n  12  "
    assert [tuple(picture.papers[1, column]) for column in (2, 3)] == [BLUE, ORANGE]


def test_waterworld_is_drawn_with_y_upwards() -> None:
    scene = {
        "kind": "waterworld",
        "pursuers": [[0.0, 1.0], [1.0, 0.0]],
        "foods": [[0.3, 0.1]],
        "poisons": [[0.99, 0.99]],
        "obstacles": [[0.5, 0.5]],
        "obstacle_radius": 0.2,
        "sensor_range": 0.01,
    }
    legend = {"pursuer_0": BLUE, "pursuer_1": ORANGE, "food": TINT, "poison": BLUE}
    picture = scene_picture(scene, legend, Room(columns=20, lines=4, plain=True))
    assert picture is not None
    assert picture.text == "0      x\n   ##   \n   ##   \n  o    1"


@pytest.mark.parametrize("env", [ArenaEnv(render_mode="rgb_array"), WaterworldEnv(render_mode="rgb_array")])
def test_scenes_of_the_built_in_envs_are_drawn(env: Any) -> None:
    env.reset(seed=1)
    picture = scene_picture(env.scene(), env.metadata["legend"], Room(80, 20))
    assert picture is not None
    assert "1" in picture.text


def test_an_image_has_two_pixels_in_a_character() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    image[:2], image[2:, 2:] = BLUE, ORANGE
    picture = image_picture(image, Room(columns=4, lines=9))
    assert picture.text == "▀▀▀▀\n▀▀▀▀"
    assert tuple(picture.inks[0, 0]) == tuple(picture.papers[0, 0]) == BLUE
    assert tuple(picture.inks[1, 3]) == tuple(picture.papers[1, 3]) == ORANGE


def test_an_image_without_colours_is_drawn_by_brightness() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    image[:2, 2:], image[2:, :2] = 255, 128
    assert image_picture(image, Room(columns=4, lines=2, plain=True)).text == "  @@\n++  "


def test_a_terminal_shows_picture_returns_and_keys() -> None:
    console = Console(file=io.StringIO(), width=60, height=12, force_terminal=True, color_system="truecolor")
    stage = TerminalStage(console, "arena, run\x1b[31m")
    view = View(2, 7, {"agent1": 3.0, "agent2": -0.5}, True, scene=arena([0, 5], [0]), legend=LEGEND)
    stage.show(view, "paused")
    stage.close()
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for words in (
        "arena, run\\x1b[31m, episode 2, step 7 (end)",
        "agent1 3.00  agent2 -0.50",
        "paused    space: pause",
    ):
        assert words in shown
    assert "48;2;230;96;18" in shown  # orange paper
    assert shown.count("\x1b[?1049h") == shown.count("\x1b[?1049l") == 1  # the screen of before is back


# --- Keys ------------------------------------------------------------------------------------------------------------


def test_keys_have_names() -> None:
    assert names_of_keys(" n\x1b[C\x1b[A+q\x1b") == ["space", "n", "right", "up", "+", "q", "escape"]


def test_keys_of_a_terminal_come_at_once_and_the_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    termios = pytest.importorskip("termios")
    main, other = os.openpty()
    before = termios.tcgetattr(other)
    monkeypatch.setattr(playback, "_is_in_front", lambda _: True)
    with os.fdopen(other) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with TerminalKeys() as keys:
            os.write(main, b"n ")
            assert keys.pressed(5.0) == ["n", "space"]
            assert keys.pressed(0.0) == []
            assert not termios.tcgetattr(other)[3] & termios.ICANON
        assert termios.tcgetattr(other) == before
    os.close(main)


def test_keys_are_left_to_others_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("q"))
    with TerminalKeys() as keys:
        assert keys.pressed(0.0) == []


# --- The pace --------------------------------------------------------------------------------------------------------


class Script(TerminalKeys, Stage):
    """A stage and keys; each look at the keys takes as long as it may."""

    def __init__(self, keys: dict[float, str]) -> None:
        super().__init__()
        self.now_s = 0.0
        self.keys = keys  # second -> key
        self.shown: list[tuple[int, float, str]] = []  # step, second, state

    def show(self, view: View, state: str) -> None:
        self.shown.append((view.step, round(self.now_s, 2), state))

    def pressed(self, timeout_s: float = 0.0) -> list[str]:
        self.now_s += timeout_s
        due = [second for second in self.keys if second <= self.now_s]
        return [self.keys.pop(second) for second in due]


def played(script: Script, steps: int, fps: float = 10.0, last: int | None = None) -> Script:
    playing = Playback(script, script, fps, clock=lambda: script.now_s)
    for step in range(steps):
        playing.show(View(1, step, {}, is_last=step == last))
    return script


def test_views_come_at_their_pace_and_the_last_one_of_an_episode_stays_longer() -> None:
    script = played(Script({}), 4, last=2)
    assert [(step, second) for step, second, _ in script.shown] == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.7)]


def test_a_paused_view_stays_until_a_step_or_the_end_of_the_pause() -> None:
    script = played(Script({0.12: "space", 1.0: "n", 2.0: "n", 3.0: "space"}), 5)
    steps = [(step, state) for step, _, state in script.shown]
    assert steps == [
        (0, "10 steps/s"),
        (1, "10 steps/s"),
        (1, "paused"),
        (2, "paused"),
        (3, "paused"),
        (3, "10 steps/s"),
        (4, "10 steps/s"),
    ]
    assert 2.0 <= next(second for step, second, _ in script.shown if step == 3) < 2.1


def test_keys_change_the_pace_within_bounds() -> None:
    script = played(Script({0.01: "+", 0.02: "=", 0.03: "up"}), 3)
    assert script.shown[-1][2] == "33.8 steps/s"  # 10 times 1.5 cubed
    assert played(Script({0.01: "-"}), 2).shown[-1][2] == "6.67 steps/s"
    assert played(Script({1e-4 * n: "+" for n in range(30)}), 9).shown[-1][2] == "1e+03 steps/s"


@pytest.mark.parametrize("key", ["q", "escape"])
def test_the_viewer_may_leave(key: str) -> None:
    with pytest.raises(ViewerLeftError):
        played(Script({0.25: key}), 9)


# --- Where -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_display(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    return


@pytest.mark.usefixtures("_no_display")
def test_sdl_without_a_display_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert why_no_window() == "there is no display ($DISPLAY and $WAYLAND_DISPLAY name none)"
    monkeypatch.setenv("SDL_VIDEODRIVER", "nowhere")
    assert str(why_no_window()).startswith("SDL says: ")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert why_no_window() is None
    monkeypatch.setitem(sys.modules, "pygame", None)
    assert "needs pygame" in str(why_no_window())


def test_what_is_no_terminal_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_terminal(Console(file=io.StringIO())) == "standard output is no terminal"
    assert why_no_terminal(Console(file=io.StringIO(), force_terminal=True)) in (
        None,
        "the terminal cannot move its cursor (TERM is dumb)",
    )
    monkeypatch.setenv("TERM", "dumb")
    assert "dumb" in str(why_no_terminal(Console(file=io.StringIO(), force_terminal=True)))
