"""Views of an env shown one after the other, in a window or a terminal, at a pace and with keys."""

from __future__ import annotations

import os
import select
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text
from typing_extensions import override

from marl_sb3.errors import ConfigError, MarlSb3Error
from marl_sb3.extensions.display import (
    RGB,
    Canvas,
    Room,
    cut_line,
    image_picture,
    number,
    one_line,
    packed,
    scene_picture,
)

KEYS = "space: pause, n: step, +/-: pace, q: quit"

_COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("space", "p"), "pause"),
    **dict.fromkeys(("n", "right", "."), "step"),
    **dict.fromkeys(("+", "=", "up"), "faster"),
    **dict.fromkeys(("-", "down"), "slower"),
    **dict.fromkeys(("q", "escape"), "quit"),
}
_FACTOR, _LEAST_FPS, _MOST_FPS = 1.5, 0.1, 1000.0  # what the keys change, and how far
_LAST_FRAMES = 5  # for as many the end of an episode is shown
_POLL_S = 0.05  # between looks at the keys
_MOST_AGENTS = 8  # of more, the sum of returns is shown
_LEAST_COLUMNS, _LEAST_LINES = 20, 6


class ViewerLeftError(MarlSb3Error):
    """The viewer wants to see no more."""


@dataclass(frozen=True)
class View:
    """What there is to see after a reset or a step."""

    episode: int  # counted from 1
    step: int  # env steps since the start of the episode
    returns: Mapping[str, float]  # of each agent so far
    is_last: bool = False  # whether the episode has ended
    image: npt.NDArray[np.uint8] | None = None  # (height, width, 3) uint8, if the env renders images
    scene: Mapping[str, Any] | None = None  # what the env's `scene()` returns, if it draws itself
    text: str | None = None  # what it renders, if that is text
    legend: Mapping[str, RGB] = field(default_factory=dict)  # colours by name


# --- Keys ------------------------------------------------------------------------------------------------------------

_SEQUENCES = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left", "\x1b": "escape", " ": "space"}


class TerminalKeys:
    """Reads keys from standard input as they are pressed, if it is a terminal; leaves it as it was."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        """Let keys come one by one, without being shown."""
        with suppress(ImportError, ValueError, OSError):  # no such terminals here; it is closed
            import termios
            import tty

            if sys.stdin is not None and sys.stdin.isatty() and _is_in_front(sys.stdin.fileno()):
                self._before = termios.tcgetattr(sys.stdin.fileno())
                tty.setcbreak(sys.stdin.fileno(), termios.TCSANOW)
        return self

    def __exit__(self, *_: object) -> None:
        """Let lines come as before."""
        if self._before is not None:
            import termios

            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._before)
            self._before = None

    def pressed(self, timeout_s: float) -> list[str]:
        """Wait for keys for at most so long; returns their names."""
        if self._before is None:
            time.sleep(timeout_s)
            return []
        if not select.select([sys.stdin], [], [], timeout_s)[0]:
            return []
        return names_of_keys(os.read(sys.stdin.fileno(), 64).decode(errors="ignore"))


def _is_in_front(terminal: int) -> bool:
    """Whether keys reach this process; one in the background would be stopped where it sets the terminal."""
    return os.tcgetpgrp(terminal) == os.getpgrp()


def names_of_keys(typed: str) -> list[str]:
    """Return the names of keys from what a terminal sends for them."""
    names = []
    while typed:
        sent = typed[:3] if typed[:3] in _SEQUENCES else typed[0]
        names.append(_SEQUENCES.get(sent, sent))
        typed = typed[len(sent) :]
    return names


# --- Places to show views in -----------------------------------------------------------------------------------------


class Stage(ABC):
    """Shows views."""

    @abstractmethod
    def show(self, view: View, state: str) -> None:
        """Show a view.

        Args:
            state: whether it is paused, and the pace.
        """

    def pressed(self) -> list[str]:
        """Return the names of keys that were pressed in a window of its own."""
        return []

    def close(self) -> None:  # noqa: B027 - most have nothing to remove
        """Remove what it shows."""


class EnvsOwnWindow(Stage):
    """An env with render mode `human` has shown its view already."""

    @override
    def show(self, view: View, state: str) -> None:
        pass


class WindowStage(Stage):
    """A window.

    Args:
        picture: makes the image to show from a view; None: there is none.
    """

    def __init__(self, title: str, picture: Callable[[View], npt.NDArray[np.uint8] | None]) -> None:
        from marl_sb3.envs import EnvWindow

        self._window = EnvWindow(f"{title} - {KEYS}", fps=0)
        self._picture = picture

    @override
    def show(self, view: View, state: str) -> None:
        if (picture := self._picture(view)) is not None:
            self._window.show(picture)

    @override
    def pressed(self) -> list[str]:
        keys = self._window.pressed()
        return ["q"] if self._window.is_closed else keys

    @override
    def close(self) -> None:
        self._window.close()


class TerminalStage(Stage):
    """The whole terminal, until it is closed: the picture as large as it fits, and lines below it."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._live = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    @override
    def show(self, view: View, state: str) -> None:
        width, height = self._console.size
        self._live.update(self._picture(view, state, width, height), refresh=True)

    def _picture(self, view: View, state: str, width: int, height: int) -> RenderableType:
        lines = [f"{one_line(self._title)}, episode {view.episode}, step {view.step}{' (end)' if view.is_last else ''}"]
        lines += packed(_returns(view), width)
        lines.append(f"{state}    {KEYS}")
        options = self._console.options
        plain = options.ascii_only or self._console.color_system is None
        room = Room(max(_LEAST_COLUMNS, width), max(_LEAST_LINES, height - len(lines) - 1), plain)
        return Group(drawn(view, room), *map(cut_line, lines))

    @override
    def close(self) -> None:
        self._live.stop()


def _returns(view: View) -> list[str]:
    if len(view.returns) > _MOST_AGENTS:
        return [f"return of {len(view.returns)} agents {number(sum(view.returns.values()))}"]
    return [f"{one_line(agent)} {number(value)}" for agent, value in view.returns.items()]


def drawn(view: View, room: Room) -> Canvas | Text:
    """Draw a view with characters."""
    if view.scene is not None and (picture := scene_picture(view.scene, view.legend, room)) is not None:
        return picture
    if view.image is not None:
        return image_picture(view.image, room)
    return Text.from_ansi(view.text or "", no_wrap=True, overflow="crop")


# --- The pace --------------------------------------------------------------------------------------------------------


class Playback:
    """Shows views at a pace, and obeys keys.

    Args:
        stage: where they are shown.
        fps: views per second; keys change it.
        clock: returns seconds.
    """

    def __init__(
        self, stage: Stage, keys: TerminalKeys, fps: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._stage, self._keys, self._clock = stage, keys, clock
        self._fps = fps
        self._stepping = False
        self.is_paused = False  # whether it waits for a key after each view

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        """Close the stage."""
        self._stage.close()

    @property
    def state(self) -> str:
        """Words on the pace."""
        return "paused" if self.is_paused else f"{self._fps:.3g} steps/s"

    def show(self, view: View) -> None:
        """Show a view until the next one is due.

        Raises:
            ViewerLeftError: the viewer has asked for the end, or closed the window.
        """
        began_s, shown = self._clock(), None
        self._stepping = False
        while True:
            size = os.get_terminal_size() if sys.stdout.isatty() else None
            if shown != (shown := (self.state, size)):
                self._stage.show(view, self.state)
            left_s = began_s + (_LAST_FRAMES if view.is_last else 1) / self._fps - self._clock()
            if self._stepping or (not self.is_paused and left_s <= 0.0):
                self._obey(0.0)
                return
            self._obey(_POLL_S if self.is_paused else min(_POLL_S, left_s))

    def _obey(self, timeout_s: float) -> None:
        for key in [*self._keys.pressed(timeout_s), *self._stage.pressed()]:
            command = _COMMANDS.get(key)
            if command == "quit":
                raise ViewerLeftError("the viewer has left")
            if command == "pause":
                self.is_paused = not self.is_paused
            elif command == "step":
                self.is_paused = self._stepping = True
            elif command is not None:
                factor = _FACTOR if command == "faster" else 1 / _FACTOR
                self._fps = min(_MOST_FPS, max(_LEAST_FPS, self._fps * factor))


# --- Which place -----------------------------------------------------------------------------------------------------


def why_no_window() -> str | None:
    """Say why no window can be opened; None if one can."""
    from marl_sb3.envs import import_pygame

    # Without a display, SDL draws where nobody sees it, and says nothing.
    is_named = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    if not is_named and sys.platform not in ("win32", "darwin"):
        return "there is no display ($DISPLAY and $WAYLAND_DISPLAY name none)"
    try:
        pygame = import_pygame()
        try:
            pygame.display.init()
            pygame.display.quit()
        except pygame.error as error:
            return f"SDL says: {error}"
    except ConfigError as error:
        return str(error)
    return None


def why_no_terminal(console: Console) -> str | None:
    """Say why nothing can be drawn in the terminal; None if it can."""
    if not console.is_terminal:
        return "standard output is no terminal"
    return "the terminal cannot move its cursor (TERM is dumb)" if console.is_dumb_terminal else None
