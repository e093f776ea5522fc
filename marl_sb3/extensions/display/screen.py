"""Screens for live views: a terminal, or the output of a notebook cell."""

from __future__ import annotations

import importlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.segment import Segment
from rich.text import Text
from typing_extensions import override

from marl_sb3.extensions.display.text import folded
from marl_sb3.output import Guard, LenientStream, printable

_ROOM = len("^C^C")
_PER_SECOND = 2  # redraws of a terminal; each holds the run up for 5 ms
_NOTEBOOK_S = 0.5  # least time between redraws in a notebook
_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT = 88, 40


@dataclass(frozen=True)
class ScreenSize:
    """The size of a screen in characters and lines, and whether it is limited to ASCII."""

    width: int
    height: int
    ascii_only: bool = False


Draw = Callable[[ScreenSize], RenderableType]


class Screen:
    """Shows a picture and redraws it; this one shows nothing, for a console that supports plain lines only.

    Args:
        draw: makes the picture; it may be called in another thread.
        keep: leave the last picture on the screen when it is closed.
    """

    is_live = False  # whether it shows anything

    def __init__(self, draw: Draw, *, keep: bool) -> None:
        self._draw = draw
        self._keep = keep

    def open(self) -> None:
        """Show the first picture."""

    def refresh(self) -> None:
        """Note that the state has changed; redraw when the next redraw is due."""

    def close(self) -> None:
        """Draw the last picture and release the screen; remove it unless it is kept. A second call has no effect."""


class TerminalScreen(Screen):
    """Redraws a few times a second in a background thread; text printed meanwhile appears above the picture."""

    is_live = True

    def __init__(self, console: Console, draw: Draw, *, keep: bool) -> None:
        super().__init__(draw, keep=keep)
        self._console = console
        self._is_last = False
        self._picture: RenderableType = ""
        self._guard: Guard[RenderableType] = Guard(lambda: None)
        self._live: Live | None = None

    def _latest(self) -> RenderableType:
        if self._is_last and not self._keep:
            return ""  # Rich would print the whole picture, even one too high, before removing it
        # Room is left for what the terminal itself writes behind the picture: a ^C that begins a line would move it.
        width, height = self._console.width - _ROOM, self._console.height - 1
        picture = self._guard(self._draw, ScreenSize(width, height, self._console.options.ascii_only))
        self._picture = Constrain(picture, width) if picture is not None else self._picture
        return self._picture

    def open(self) -> None:
        """Show the first picture."""
        if self._live is None:
            self._is_last = False
            self._live = Live(
                console=self._console,
                refresh_per_second=_PER_SECOND,
                transient=not self._keep,
                vertical_overflow="crop",
                get_renderable=self._latest,
                # Redirecting a standard error that is a file would print it on the terminal.
                redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
            )
            self._live.start(refresh=True)

    def close(self) -> None:
        """Draw the last picture; remove it unless it is kept."""
        if self._live is not None:
            self._live.refresh()
            self._is_last = True
            self._live.stop()
            self._live = None


class NotebookScreen(Screen):
    """Replaces the output of a cell by IPython's display function; it needs no widgets."""

    is_live = True

    def __init__(self, draw: Draw, *, keep: bool) -> None:
        super().__init__(draw, keep=keep)
        self._handle: Any = None
        self._next_s = 0.0

    def open(self) -> None:
        """Show the first picture."""
        if self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display(self._bundle(), raw=True, display_id=True)

    def refresh(self) -> None:
        """Redraw, unless the last redraw was less than half a second ago."""
        if self._handle is not None and time.perf_counter() >= self._next_s:
            self._next_s = time.perf_counter() + _NOTEBOOK_S
            self._handle.update(self._bundle(), raw=True)

    def close(self) -> None:
        """Draw the last picture; remove it unless it is kept."""
        if self._handle is not None:
            self._handle.update(self._bundle() if self._keep else {"text/plain": ""}, raw=True)
            self._handle = None

    def _bundle(self) -> dict[str, str]:
        picture = self._draw(ScreenSize(_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT))
        console = SafeConsole(
            file=io.StringIO(), record=True, width=_NOTEBOOK_WIDTH, color_system="truecolor", force_jupyter=False
        )
        console.print(picture)
        html = '<pre style="white-space: pre; line-height: normal; font-family: monospace">{code}</pre>'
        return {
            "text/html": console.export_html(inline_styles=True, code_format=html, clear=False),
            "text/plain": console.export_text(),
        }


def cut_line(text: str, style: str = "") -> Text:
    """Make a line that is cut where the screen ends."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


class SafeConsole(Console):
    """A console that escapes what a terminal would obey in the texts that it is given; see `printable`.

    With `soft_wrap`, long lines end between words on a terminal; commands stay in one piece, to be copied.
    """

    @override
    def print(self, *objects: Any, soft_wrap: bool | None = None, **how: Any) -> None:
        if soft_wrap and self.is_terminal and not self.is_jupyter:
            objects = tuple(self._folded(each) for each in objects)
        super().print(*objects, soft_wrap=soft_wrap, **how)

    def _folded(self, text: Any) -> Any:
        if isinstance(text, Text):
            return Text(folded(text.plain, self.width), style=text.style)
        return folded(text, self.width) if isinstance(text, str) else text

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for part in super().render(renderable, options):
            safe = part.text if part.control else printable(part.text)
            yield part if safe == part.text else Segment(safe, part.style)


def standard_console(*, stderr: bool = False) -> Console:
    """Make a console on standard output or error. Writing to a closed output is no error."""
    stream = LenientStream(sys.stderr if stderr else sys.stdout)
    # FORCE_COLOR, which many CI services set, would make Rich treat a file as a terminal.
    is_terminal = None if stream.isatty() else False
    # Names of envs, agents and metrics are printed as they are: no markup, no `:fire:` that becomes an emoji.
    of_stream: Any = stream
    return SafeConsole(file=of_stream, highlight=False, markup=False, emoji=False, force_terminal=is_terminal)


def screen_for(console: Console, draw: Draw, *, keep: bool) -> Screen:
    """Make the screen for live views of a console."""
    if console.is_jupyter:
        return NotebookScreen(draw, keep=keep)
    if console.is_terminal and console.is_interactive and not console.is_dumb_terminal:
        return TerminalScreen(console, draw, keep=keep)
    return Screen(draw, keep=keep)
