"""Where episodes are watched: a window or a terminal, with keys as commands."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Self

import numpy as np
from rich.color import Color
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text
from typing_extensions import override

from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.session import LEAST_PER_S, MOST_PER_S, Moment, Stage, ViewerCommand, ViewerLeftError
from marl_sb3.evaluation.viewed_env import View, ViewedEnv
from marl_sb3.extensions.display.screen import ScreenSize, cut_line, standard_console
from marl_sb3.extensions.display.text import number, one_line, packed
from marl_sb3.systems import console_keys, has_console_keys, lacks_display
from marl_sb3.types import Array

KEYS = "space: pause, n: step, +/-: pace, q: quit"

_COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("space", "p"), "pause"),
    **dict.fromkeys(("n", "right", "."), "step"),
    **dict.fromkeys(("+", "=", "up"), "faster"),
    **dict.fromkeys(("-", "down"), "slower"),
    **dict.fromkeys(("q", "escape"), "quit"),
}
_FACTOR = 1.5  # by which keys change the pace
_LAST_FRAMES = 5  # for as many the end of an episode is shown
_POLL_S = 0.05  # between looks at the keys
_MOST_AGENTS = 8  # of more, the sum of returns is shown
_LEAST_COLUMNS, _LEAST_LINES = 20, 6
_UPPER_HALF = "▀"
_RAMP = " .:-=+*#%@"  # from dark to light


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

            # Keys do not reach a process in the background, which would be stopped where it sets the terminal.
            is_terminal = sys.stdin is not None and sys.stdin.isatty()
            if is_terminal and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
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
            if has_console_keys():
                return names_of_keys(console_keys(timeout_s))
            time.sleep(timeout_s)
            return []
        if not select.select([sys.stdin], [], [], timeout_s)[0]:
            return []
        return names_of_keys(os.read(sys.stdin.fileno(), 64).decode(errors="ignore"))


def names_of_keys(typed: str) -> list[str]:
    """Return the names of keys from what a terminal sends for them."""
    names = []
    while typed:
        sent = typed[:3] if typed[:3] in _SEQUENCES else typed[0]
        names.append(_SEQUENCES.get(sent, sent))
        typed = typed[len(sent) :]
    return names


# --- Stages ----------------------------------------------------------------------------------------------------------


class KeyStage(Stage):
    """A stage whose viewer presses keys. Alone, it is that of an env with render mode `human`, which shows itself.

    Args:
        keys: of the terminal.
    """

    most_per_s = float("inf")

    def __init__(self, keys: TerminalKeys) -> None:
        self._keys = keys
        self._pressed: list[str] = []  # and not obeyed yet

    @override
    def show(self, moment: Moment, view: View | None) -> None:
        before, self._moment = getattr(self, "_moment", None), moment
        if moment.against and moment.is_over and (before is None or not before.is_over):
            self.tell(result_line(moment))

    def tell(self, line: str) -> None:
        """Show what came of an episode in which two played each other."""
        standard_console().print(line, soft_wrap=True)

    @override
    def next_command(self, timeout_s: float | None) -> ViewerCommand | None:
        left_s = float("inf") if timeout_s is None else timeout_s
        while True:
            self._pressed += self.pressed(min(_POLL_S, left_s))
            while self._pressed:
                if (command := self._meant(self._pressed.pop(0))) is not None:
                    return command
            left_s -= _POLL_S
            if left_s <= 0.0:
                return None

    def pressed(self, timeout_s: float) -> list[str]:
        """Wait for keys for at most so long; returns their names."""
        return self._keys.pressed(timeout_s)

    def _meant(self, key: str) -> ViewerCommand | None:
        meant = _COMMANDS.get(key)
        if meant == "quit":
            raise ViewerLeftError("the viewer has left")
        if meant == "pause":
            return ViewerCommand("pause" if self._moment.playing else "play")
        if meant == "step":
            return ViewerCommand("step")
        if meant is None:
            return None
        per_s = self._moment.steps_per_s * (_FACTOR if meant == "faster" else 1 / _FACTOR)
        return ViewerCommand("pace", steps_per_s=min(MOST_PER_S, max(LEAST_PER_S, per_s)))

    @override
    def hold_s(self, moment: Moment) -> float:
        return _LAST_FRAMES / moment.steps_per_s

    def close(self) -> None:
        """Remove what it shows."""


class WindowStage(KeyStage):
    """A window.

    Args:
        title: of the window.
        env: what is shown.
    """

    def __init__(self, keys: TerminalKeys, title: str, env: ViewedEnv) -> None:
        from marl_sb3.envs.drawn import EnvWindow

        super().__init__(keys)
        self._window, self._env = EnvWindow(f"{title} - {KEYS}", fps=0), env

    @override
    def show(self, moment: Moment, view: View | None) -> None:
        super().show(moment, view)
        if view is not None and view.image is not None:
            players = moment.players if moment.against else {}
            caption = replace(view.caption, players=players, tally=moment.tally)
            self._window.show(self._env.captioned(view.image, caption))

    @override
    def pressed(self, timeout_s: float) -> list[str]:
        keys = [*super().pressed(timeout_s), *self._window.pressed()]
        return ["q"] if self._window.is_closed else keys

    @override
    def close(self) -> None:
        self._window.close()


class TerminalStage(KeyStage):
    """The whole terminal, until it is closed: the picture as large as it fits, and lines below it.

    Args:
        title: below the picture.
    """

    def __init__(self, keys: TerminalKeys, title: str, console: Console) -> None:
        super().__init__(keys)
        self._console, self._title = console, title
        self._view: View | None = None
        self._told: list[str] = []  # printed when the terminal is as before
        self._size = console.size
        self._live = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    @override
    def pressed(self, timeout_s: float) -> list[str]:
        if self._size != self._console.size:
            self.show(self._moment, None)
        return super().pressed(timeout_s)

    @override
    def show(self, moment: Moment, view: View | None) -> None:
        super().show(moment, view)
        self._view, self._size = view or self._view, self._console.size
        if self._view is not None:
            self._live.update(self._picture(moment, self._view, *self._size), refresh=True)

    def _picture(self, moment: Moment, view: View, width: int, height: int) -> RenderableType:
        end = " (end)" if moment.is_over else ""
        lines = [f"{one_line(self._title)}, episode {moment.episode}, step {moment.step}{end}"]
        lines += packed(_returns(moment), width)
        lines += packed((part for line in self._told[-1:] for part in one_line(line).split("; ")), width)
        lines.append(f"{f'{moment.steps_per_s:.3g} steps/s' if moment.playing else 'paused'}    {KEYS}")
        options = self._console.options
        plain = options.ascii_only or self._console.color_system is None
        room = ScreenSize(max(_LEAST_COLUMNS, width), max(_LEAST_LINES, height - len(lines) - 1), plain)
        shown = Text.from_ansi(view.text or "", no_wrap=True, overflow="crop")
        return Group(shown if view.image is None else image_picture(view.image, room), *map(cut_line, lines))

    @override
    def tell(self, line: str) -> None:
        self._told.append(line)

    @override
    def close(self) -> None:
        self._live.stop()
        for line in self._told:
            self._console.print(line, soft_wrap=True)


def _returns(moment: Moment) -> list[str]:
    if len(moment.returns) > _MOST_AGENTS:
        return [f"return of {len(moment.returns)} agents {number(sum(moment.returns.values()))}"]
    names = {agent: f" ({moment.players[agent]})" if moment.against else "" for agent in moment.returns}
    return [f"{one_line(agent + names[agent])} {number(value)}" for agent, value in moment.returns.items()]


def result_line(moment: Moment) -> str:
    """Say what came of an episode: who has won, the mean return of each side with its agents, and the score so far."""
    sides: dict[str, list[str]] = {}
    for agent, name in moment.players.items():
        sides.setdefault(name, []).append(agent)
    means = {name: sum(moment.returns[agent] for agent in own) / len(own) for name, own in sides.items()}
    listed = {name: ", ".join(own) if len(own) <= _MOST_AGENTS else f"{len(own)} agents" for name, own in sides.items()}
    what = "mean returns" if any(len(own) > 1 for own in sides.values()) else "returns"
    returns = ", ".join(f"{name} {number(mean)} ({listed[name]})" for name, mean in means.items())
    won, tally = (f"{words}; " if words else "" for words in (moment.result, moment.tally))
    return f"episode {moment.episode}: {won}{tally}{what}: {returns}"


def image_picture(image: Array, room: ScreenSize) -> Segments:
    """Draw an image as large as there is room, two pixels in a character; without colours, by brightness.

    Args:
        image: (height, width, 3) uint8.
    """
    from PIL import Image

    ratio = image.shape[0] / image.shape[1]
    columns = max(1, min(room.width, int(2 * room.height / ratio)))  # a character is twice as high as wide
    lines = max(1, min(room.height, round(columns * ratio / 2)))
    size = columns, lines if room.ascii_only else 2 * lines
    small = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX))
    if room.ascii_only:
        levels = (small.mean(axis=2) * len(_RAMP) / 256).astype(int)
        return Segments([Segment("".join(_RAMP[level] for level in line)) for line in levels], new_lines=True)
    segments = []
    for inks, papers in zip(small[::2].tolist(), small[1::2].tolist(), strict=True):
        for pair, run in groupby(zip(map(tuple, inks), map(tuple, papers), strict=True)):
            segments.append(Segment(_UPPER_HALF * len(list(run)), _style(*pair)))
        segments.append(Segment.line())
    return Segments(segments)


@lru_cache(maxsize=4096)
def _style(ink: tuple[int, int, int], paper: tuple[int, int, int]) -> Style:
    return Style(color=Color.from_rgb(*ink), bgcolor=Color.from_rgb(*paper))


# --- Which place -----------------------------------------------------------------------------------------------------


def why_no_window() -> str | None:
    """Say why no window can be opened; None if one can."""
    from marl_sb3.envs.drawn import import_pygame

    # Without a display, SDL draws where nobody sees it, and says nothing.
    if lacks_display() and not os.environ.get("SDL_VIDEODRIVER"):
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
