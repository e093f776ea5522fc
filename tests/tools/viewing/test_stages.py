"""Stages: keys, pictures of characters, and where something can be shown."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from marl_sb3.evaluation.session import Moment, ViewerCommand, ViewerLeftError
from marl_sb3.evaluation.viewed_env import View
from marl_sb3.extensions.display.filmed_env import Scene
from marl_sb3.extensions.display.screen import ScreenSize
from marl_sb3.tools.viewing.stages import (
    KeyStage,
    TerminalKeys,
    TerminalStage,
    image_picture,
    names_of_keys,
    why_no_terminal,
    why_no_window,
)

BLUE, ORANGE = (29, 91, 214), (230, 96, 18)


# --- Pictures --------------------------------------------------------------------------------------------------------


def test_an_image_has_two_pixels_in_a_character() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    image[:2], image[2:, 2:] = BLUE, ORANGE
    picture = image_picture(image, ScreenSize(width=4, height=9))
    assert [each.text for each in picture.segments] == ["▀▀▀▀", "\n", "▀▀", "▀▀", "\n"]
    styles: list[Any] = [each.style for each in picture.segments if each.style]
    colours = [(each.color.get_truecolor(), each.bgcolor.get_truecolor()) for each in styles]
    assert colours == [(BLUE, BLUE), ((0, 0, 0), (0, 0, 0)), (ORANGE, ORANGE)]


def test_an_image_without_colours_is_drawn_by_brightness() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    image[:2, 2:], image[2:, :2] = 255, 128
    picture = image_picture(image, ScreenSize(width=4, height=2, ascii_only=True))
    assert [each.text for each in picture.segments] == ["  @@", "++  "]


def test_a_terminal_shows_picture_returns_and_keys() -> None:
    console = Console(file=io.StringIO(), width=60, height=12, force_terminal=True, color_system="truecolor")
    stage = TerminalStage(TerminalKeys(), "arena, run\x1b[31m", console)
    returns = {"agent1": 3.0, "agent2": -0.5}
    view = View(Scene(2, 7, returns), image=np.full((4, 4, 3), ORANGE, np.uint8))
    stage.show(moment(episode=2, step=7, returns=returns, is_over=True, playing=False), view)
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


def test_a_terminal_shows_who_plays_and_the_latest_result_which_are_printed_in_the_end() -> None:
    console = Console(file=io.StringIO(), width=60, height=14, force_terminal=True, color_system=None)
    stage = TerminalStage(TerminalKeys(), "game", console)
    played = {"against": "runs/b", "players": {"a": "runs/a", "b": "runs/b", "c": "runs/b"}, "steps_per_s": 5.0}
    over: Any = {**played, "episode": 1, "step": 9, "returns": {"a": 4.0, "b": -1.0, "c": -3.0}, "result": "runs/a won"}
    view = View(Scene(1, 9, {}), text="board")
    for is_over in (False, True, True):
        stage.show(moment(**over, tally="runs/a 1 : 0 runs/b", is_over=is_over, playing=True), view)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "a (runs/a) 4.00  b (runs/b) -1.00  c (runs/b) -3.00" in shown
    assert "episode 1: runs/a won  runs/a 1 : 0 runs/b" in shown
    stage.close()
    lines = console.file.getvalue()[len(shown) :]  # type: ignore[attr-defined]
    words = "episode 1: runs/a won; runs/a 1 : 0 runs/b; mean returns: runs/a 4.00 (a), runs/b -2.00 (b, c)"
    assert lines.count("episode 1") == 1
    assert words in lines


# --- Keys ------------------------------------------------------------------------------------------------------------


def test_keys_have_names() -> None:
    assert names_of_keys(" n\x1b[C\x1b[A+q\x1b") == ["space", "n", "right", "up", "+", "q", "escape"]


def test_keys_of_a_terminal_come_at_once_and_the_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    termios = pytest.importorskip("termios")
    main, other = os.openpty()
    before = termios.tcgetattr(other)
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
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


class Keys(TerminalKeys):
    """Keys that are pressed at their seconds; each look at them takes as long as it may."""

    def __init__(self, keys: dict[float, str]) -> None:
        super().__init__()
        self.now_s, self.keys = 0.0, keys

    def pressed(self, timeout_s: float) -> list[str]:
        self.now_s += timeout_s
        due = [second for second in self.keys if second <= self.now_s]
        return [self.keys.pop(second) for second in due]


def stage_of(keys: dict[float, str], *, playing: bool = True, steps_per_s: float = 10.0) -> KeyStage:
    stage = KeyStage(Keys(keys))
    stage.show(moment(playing=playing, steps_per_s=steps_per_s), None)
    return stage


def moment(**more: Any) -> Moment:
    names = dict.fromkeys(Moment.__struct_fields__)
    return Moment(**{**names, **more})


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("space", ViewerCommand("pause")),
        ("n", ViewerCommand("step")),
        ("+", ViewerCommand("pace", steps_per_s=15.0)),
        ("down", ViewerCommand("pace", steps_per_s=10 * (1 / 1.5))),
    ],
)
def test_keys_are_commands(key: str, command: ViewerCommand) -> None:
    assert stage_of({0.12: key}).next_command(1.0) == command


def test_keys_depend_on_what_they_change() -> None:
    assert stage_of({0.12: "p"}, playing=False).next_command(None) == ViewerCommand("play")
    assert stage_of({0.12: "="}, steps_per_s=900).next_command(None) == ViewerCommand("pace", steps_per_s=1000)
    assert stage_of({0.12: "-"}, steps_per_s=0.12).next_command(None) == ViewerCommand("pace", steps_per_s=0.1)


def test_no_key_is_no_command_and_other_keys_mean_nothing() -> None:
    stage = stage_of({0.01: "x", 0.12: "space", 0.13: "n", 0.4: "n"})
    assert stage.next_command(0.1) is None
    assert stage.next_command(0.1) == ViewerCommand("pause")
    assert stage.next_command(0.0) == ViewerCommand("step")  # it was pressed together with the other
    assert stage.next_command(0.1) is None


@pytest.mark.parametrize("key", ["q", "escape"])
def test_the_viewer_may_leave(key: str) -> None:
    with pytest.raises(ViewerLeftError):
        stage_of({0.25: key}).next_command(None)


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


def test_keys_of_a_console_of_windows_are_those_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = [*"q\xe0H\0K ", "\x1b"]
    console = SimpleNamespace(kbhit=lambda: bool(typed), getwch=lambda: typed.pop(0))
    monkeypatch.setitem(sys.modules, "msvcrt", console)
    monkeypatch.setattr("marl_sb3.systems.IS_WINDOWS", True)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert TerminalKeys().pressed(1.0) == ["q", "up", "left", "space", "escape"]
    assert TerminalKeys().pressed(0.0) == []
