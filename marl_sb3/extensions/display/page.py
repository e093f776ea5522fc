"""Pages for people: one HTML file with text, tables and plotly figures, which loads nothing when it is opened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NewType

from marl_sb3.extensions.display.text import one_line
from marl_sb3.files.atomic import write_whole

Html = NewType("Html", str)
"""HTML whose text is escaped."""

_COLUMN, _ROW = 'th scope="col"', 'th scope="row"'
# The logo is a link, and a button would send the figure to plotly's server.
_CONFIG = {"displaylogo": False, "showSendToCloud": False, "plotlyServerURL": "", "responsive": True}
_HEIGHT = 480  # pixels of a figure that has no height of its own
_LONG = 40  # characters of a text that is broken into lines
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_MANY_DIGITS = re.compile(r"\d+\.\d{4,}(e[-+]?\d+)?")


class Page:
    """A page of sections.

    Args:
        title: its title and first heading.
    """

    def __init__(self, title: str) -> None:
        self._title = words(title)
        self._sections: list[str] = []
        self._n_figures = 0

    def add(self, heading: str, *parts: Html) -> None:
        """Add a section."""
        self._sections.append("\n".join([f"<section>\n<h2>{words(heading)}</h2>", *parts, "</section>"]))

    def figure(self, figure: Any) -> Html:
        """A plotly figure as HTML; the first one of a page, which must come first on it, includes plotly.js."""
        html = figure.to_html(
            config=_CONFIG,
            include_plotlyjs=self._n_figures == 0,
            full_html=False,
            default_height=f"{figure.layout.height or _HEIGHT}px",
            div_id=f"plot-{self._n_figures}",
        )
        self._n_figures += 1
        return Html(f'<div class="wide">{html}</div>')

    def beside(self, figures: Iterable[Any]) -> Html:
        """Plotly figures beside each other, as many as there is room for."""
        return Html(f'<div class="panels">{"".join(map(self.figure, figures))}</div>')

    def html(self) -> str:
        """The whole page."""
        html, script = ((files(__package__) / name).read_text(encoding="utf-8") for name in ("page.html", "figures.js"))
        script = f"<script>\n{script}</script>" if self._n_figures else ""
        return Template(html).substitute(title=self._title, sections="\n\n".join(self._sections), script=script)

    def write(self, path: Path) -> Path:
        """Write the page into a file and return its path."""
        return write_whole(path, self.html())


def words(value: object) -> Html:
    """A value as text on one line; None is empty. Also for the labels of figures, in which plotly finds tags."""
    return Html("" if value is None else escape(one_line(value)))


def prose(value: object) -> Html:
    """A value as text on one line, in which options such as --seed are not broken."""
    return Html(_OPTION.sub(r"<code>\g<0></code>", words(value)))


def note(text: str) -> Html:
    """A paragraph that explains what comes after it."""
    return Html(f'<p class="note">{prose(text)}</p>')


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = (), best: int | None = None) -> Html:
    """A table, which scrolls if it is wider than the page; numbers have four significant digits.

    Args:
        rows: the values of each row; None is empty.
        head: the names of the columns; without them the first value of each row is its name.
        best: the index of the row that stands out.
    """
    lines = [f"<tr>{''.join(_cell(name, _COLUMN) for name in head)}</tr>"] if head else []
    first = "td" if head else _ROW
    for index, (name, *values) in enumerate(rows):
        style = ' class="best"' if index == best else ""
        lines.append(f"<tr{style}>{_cell(name, first)}{''.join(map(_cell, values))}</tr>")
    return Html("\n".join(['<div class="wide">', "<table>", *lines, "</table>", "</div>"]))


def _cell(value: object, tag: str = "td") -> str:
    text = shorter(value)
    style = ' class="long"' if isinstance(text, str) and len(text) > _LONG else ""
    return f"<{tag}{style}>{prose(text)}</{tag[:2]}>"


def shorter(value: object) -> object:
    """Round a float to four significant digits, and those in a text that have more: `lin_0.001234`."""
    if isinstance(value, str):
        return _MANY_DIGITS.sub(lambda digits: f"{float(digits[0]):.4g}", value)
    return float(f"{value:.4g}") if isinstance(value, float) else value
