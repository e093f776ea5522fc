"""Where a picture is drawn over and over again: a terminal, or the output of a notebook's cell."""

from __future__ import annotations

import importlib
import io
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO, cast

from rich.console import Console, RenderableType
from rich.live import Live

from marl_sb3.display.guard import Guard
from marl_sb3.output import LenientStream

_PER_SECOND = 2  # pictures on a terminal: one takes 5 ms, in which nothing is trained
_NOTEBOOK_S = 0.5  # between pictures in a notebook
_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT = 88, 40


@dataclass(frozen=True)
class Room:
    """What a picture has to fit into: columns, lines, and whether only ASCII can be shown."""

    width: int
    height: int
    ascii_only: bool = False


Draw = Callable[[Room], RenderableType]


class Screen(ABC):
    """Shows the latest picture of something.

    Args:
        draw: makes the picture; it may be called in another thread.
        keep: leave the last picture when it is closed.
    """

    def __init__(self, draw: Draw, *, keep: bool) -> None:
        self._draw = draw
        self._keep = keep

    @abstractmethod
    def open(self) -> None:
        """Begin to show."""

    @abstractmethod
    def refresh(self) -> None:
        """Something has changed: show it when it is time."""

    @abstractmethod
    def close(self) -> None:
        """Give the place back; doing it twice is fine."""


class TerminalScreen(Screen):
    """Draws a few times a second, in a thread of its own; what is printed meanwhile goes above the picture."""

    def __init__(self, console: Console, draw: Draw, *, keep: bool) -> None:
        super().__init__(draw, keep=keep)
        self._console = console
        self._is_last = False
        self._picture: RenderableType = ""
        self._guard: Guard[RenderableType] = Guard(lambda: None)
        self._live: Live | None = None

    def _latest(self) -> RenderableType:
        if self._is_last and not self._keep:
            return ""  # Rich would print all of it, however high it is, before it takes it away
        picture = self._guard(self._draw, self._room())
        if picture is not None:
            self._picture = picture
        return self._picture

    def _room(self) -> Room:
        size = self._console.size
        # A line is left for what the terminal itself writes there: ^C, say.
        return Room(size.width, size.height - 1, self._console.options.ascii_only)

    def open(self) -> None:
        """Begin to show."""
        if self._live is None:
            self._is_last = False
            self._live = Live(
                console=self._console,
                refresh_per_second=_PER_SECOND,
                transient=not self._keep,
                vertical_overflow="crop",
                get_renderable=self._latest,
                # A standard error that goes to a file is no business of the terminal's.
                redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
            )
            self._live.start(refresh=True)

    def refresh(self) -> None:
        """Nothing: the thread does."""

    def close(self) -> None:
        """Show the last picture, and take it away if it is not kept."""
        if self._live is not None:
            self._live.refresh()
            self._is_last = True
            self._live.stop()
            self._live = None


class NotebookScreen(Screen):
    """Replaces the output of a cell, through IPython's own display: no widgets are needed."""

    def __init__(self, draw: Draw, *, keep: bool) -> None:
        super().__init__(draw, keep=keep)
        self._handle: Any = None
        self._next_s = 0.0

    def open(self) -> None:
        """Begin to show."""
        if self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display(self._bundle(), raw=True, display_id=True)

    def refresh(self) -> None:
        """Show what has changed, unless it was done a moment ago."""
        if self._handle is not None and time.perf_counter() >= self._next_s:
            self._next_s = time.perf_counter() + _NOTEBOOK_S
            self._handle.update(self._bundle(), raw=True)

    def close(self) -> None:
        """Show the last picture."""
        if self._handle is not None:
            self._handle.update(self._bundle() if self._keep else {"text/plain": ""}, raw=True)
            self._handle = None

    def _bundle(self) -> dict[str, str]:
        picture = self._draw(Room(_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT))
        console = Console(
            file=io.StringIO(), record=True, width=_NOTEBOOK_WIDTH, color_system="truecolor", force_jupyter=False
        )
        console.print(picture)
        html = '<pre style="white-space: pre; line-height: normal; font-family: monospace">{code}</pre>'
        return {
            "text/html": console.export_html(inline_styles=True, code_format=html, clear=False),
            "text/plain": console.export_text(),
        }


def standard_console() -> Console:
    """Standard output, which may go away without ending anything; a terminal only where there is one."""
    stream = LenientStream(sys.stdout)
    # FORCE_COLOR, which many CI services set, makes no terminal of a file.
    return Console(file=cast("TextIO", stream), highlight=False, force_terminal=None if stream.isatty() else False)


def screen_for(console: Console, draw: Draw, *, keep: bool) -> Screen | None:
    """What a picture can be shown on; None where only lines can be printed."""
    if console.is_jupyter:
        return NotebookScreen(draw, keep=keep)
    if console.is_terminal and console.is_interactive and not console.is_dumb_terminal:
        return TerminalScreen(console, draw, keep=keep)
    return None


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    return Console().is_jupyter
