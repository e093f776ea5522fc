"""Figures of learning curves: PNG and SVG by matplotlib, HTML by plotly, in the same colours and lines.

Groups differ in colour (Okabe and Ito, "Color universal design", 2008, which people with colour blindness tell apart),
agents in line and marker.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from marl_sb3.errors import ConfigError
from marl_sb3.extensions.display.page import Html, Page, note, words
from marl_sb3.extensions.display.text import one_line
from marl_sb3.files.atomic import named_by_user, write_whole
from marl_sb3.results.curves import Curve, Figure, Panel, draw_up
from marl_sb3.results.reading import read_records
from marl_sb3.results.records import group_by_settings
from marl_sb3.startup import require_extra

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A6A00", "#808080")
# Of plotly's figures: transparent, for light and dark pages.
GREY = "rgba(128,128,128,0.25)"
PAGE_LAYOUT = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": "#808080"},
    "margin": {"t": 40, "r": 20, "l": 60, "b": 50},
    "hovermode": "x unified",
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},  # a legend below would cover the axis
}
_LINES = (("-", "solid", ""), ("--", "dash", "9 9"), (":", "dot", "3 3"), ("-.", "dashdot", "9 3 3 3"))  # and SVG's
_MARKERS = (("o", "circle"), ("D", "diamond"), ("s", "square"), ("^", "triangle-up"), ("v", "triangle-down"))
_WIDTH, _HEIGHT, _DPI = 4.6, 3.5, 130  # inches of a panel; pixels in an inch
_CHARACTER, _LINE = 0.08, 0.18  # inches of a character and a line of the legend, and more than those of the caption
_LABEL = 32  # characters of a line of the legend
_ACROSS = 2  # panels in a row of a picture; a page has as many as there is room for
_MARKS = 9  # markers on a curve; on a page, only shorter ones have any
_BAND = 0.16  # opacity
_BAR = 5  # width of the band of a single point
_SMALL = 0.01  # axes of smaller values have exponents, such as 5e-4, and no signs of the metric system, such as 500 µ
_FORMATS = (".png", ".svg", ".html", ".pdf")
_MOST_GROUPS = len(COLORS)


def require_drawable(path: Path, formats: Sequence[str] = _FORMATS) -> None:
    """Raise ConfigError if a file's ending stands for no kind of figure, or the package for it is not installed."""
    if path.suffix.lower() not in formats:
        raise ConfigError(f"--out is {path}; accepted: a file that ends with {', '.join(formats)}", key="--out")
    require_extra(path.name, "report" if path.suffix.lower() == ".html" else "plot")


def write_figure(figure: Figure, path: Path, title: str = "") -> Path:
    """Write a figure into a file, of the kind that its ending says; returns its path.

    Raises:
        ConfigError: see `require_drawable`.
    """
    require_drawable(path)
    if path.suffix.lower() == ".html":
        page = Page(title or figure.title or "Learning curves")
        page.add("Learning curves", *with_notes(page, figure))
        return page.write(path)
    return write_whole(path, _image(matplotlib_figure(figure, title), path.suffix.lower()[1:]))


def plot_paths(
    paths: Sequence[str | Path], metrics: Sequence[str], *, out: str | Path | None = None, **how: Any
) -> Any:
    """Plot learning curves of runs; returns a `matplotlib.figure.Figure`, and writes a file if `out` names one.

    Args:
        how: `axis`, `statistic` and `smooth` of `draw_up`.
    """
    require_extra("a figure", "plot")
    groups = group_by_settings([record for path in paths for record in read_records(path)])
    figure = draw_up(groups, metrics, **how)
    if out is not None:
        with named_by_user(Path(out), "out"):
            write_figure(figure, Path(out))
    return matplotlib_figure(figure)


def _style(figure: Figure, curve: Curve) -> tuple[str, int]:
    """The colour of a curve's group, and the number of its line and marker; colours come again with another line."""
    number, parts = figure.groups.index(curve.group), figure.parts
    place = parts.index(curve.part) if curve.part in parts else 0
    return COLORS[number % _MOST_GROUPS], place + number // _MOST_GROUPS


def _legend(figure: Figure) -> list[tuple[str, str, str, int]]:
    """A colour for each group, and, if metrics have parts, a line for each part.

    Returns:
        Of each: its label, whether it is a `group` or a `part`, its colour, and the number of its line.
    """
    styles = {curve.group: _style(figure, replace(curve, part="")) for panel in figure.panels for curve in panel.curves}
    groups = [(group, "group", *style) for group, style in styles.items()]
    color = groups[0][2] if len(groups) == 1 else "#777777"
    parts = [(part, "part", color, place) for place, part in enumerate(figure.parts)]
    return [*(groups if len(groups) > 1 or not parts else ()), *parts]


# --- matplotlib ------------------------------------------------------------------------------------------------------


def matplotlib_figure(figure: Figure, title: str = "") -> Any:
    """Draw a figure; returns a `matplotlib.figure.Figure`, which notebooks show."""
    require_extra("a figure", "plot")
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter

    n, title = len(figure.panels), title or figure.title
    caption = ". ".join(filter(None, [figure.caption, *figure.notes]))
    entries = [
        (fill(label, _LABEL), {"color": color, **(_line(place) if kind == "part" or place else {"linewidth": 1.6})})
        for label, kind, color, place in _legend(figure)
    ]
    longest = max(len(line) for label, _ in entries for line in label.split("\n"))
    across, rows = min(n, _ACROSS), math.ceil(n / _ACROSS)
    width = max(_WIDTH * across, 6.4 if n == 1 else 0) + _CHARACTER * longest
    text = fill(caption, int(width / _CHARACTER))
    lines = sum(label.count("\n") + 1 for label, _ in entries)
    size = (width, max(_HEIGHT * rows + _LINE * (text.count("\n") + 1) * bool(text), _LINE * (lines + 3)))
    canvas: Any = Canvas(figsize=size, dpi=_DPI, layout="constrained")
    all_axes = canvas.subplots(rows, across, squeeze=False).flat
    for axes in all_axes[n:]:
        axes.remove()
    for axes, panel in zip(all_axes[:n], figure.panels, strict=True):
        for curve in panel.curves:
            _draw(axes, figure, curve)
        axes.set(xlabel=figure.x_label, title="" if n == 1 else panel.title, ylabel=panel.title if n == 1 else "")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _short(x)))
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, alpha=0.25, linewidth=0.6)
        axes.margins(x=0.02)  # of the whole: markers at the ends are not cut
    handles = [Line2D([], [], label=label, **style) for label, style in entries]
    canvas.legend(handles=handles, loc="outside right upper", frameon=False, fontsize="small", handlelength=2.6)
    if title:
        canvas.suptitle(title, fontsize="medium")
    if caption:
        canvas.supxlabel(text, fontsize="x-small", color="#555555")
    canvas._repr_png_ = partial(_image, canvas)  # notebooks show figures of pyplot alone
    return canvas


def _image(canvas: Any, kind: str = "png") -> bytes:
    canvas.savefig(image := io.BytesIO(), format=kind)
    return image.getvalue()


def _line(place: int) -> dict[str, Any]:
    marker = _MARKERS[place % len(_MARKERS)][0]
    return {"linestyle": _LINES[place % len(_LINES)][0], "marker": marker, "markersize": 4.5, "linewidth": 1.6}


def _draw(axes: Any, figure: Figure, curve: Curve) -> None:
    color, place = _style(figure, curve)
    spaced = max(1, len(curve.x) // _MARKS)
    axes.plot(
        curve.x,
        curve.center,
        color=color,
        markevery=(spaced // 2, spaced),
        **(_line(place) if curve.part or place or len(curve.x) == 1 else {"linewidth": 1.6}),
    )
    if curve.low is not None and curve.high is not None:
        width = 0 if len(curve.x) > 1 else _BAR
        axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=_BAND, linewidth=width)


def _short(value: float) -> str:
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{sign}"
    return f"{value:g}"


# --- plotly ----------------------------------------------------------------------------------------------------------


def plotly_html(page: Page, figure: Figure, height: int | None = None) -> Html:
    """Draw a figure for a page, with one legend for all panels; returns its HTML.

    Args:
        height: pixels of a panel; None: it depends on their number.
    """
    pixels = height or (480 if len(figure.panels) == 1 else 320)
    drawn = page.beside(_plotly_panel(figure, panel).update_layout(height=pixels) for panel in figure.panels)
    entries = [_plotly_entry(*entry) for entry in _legend(figure)]
    return Html(f'<div class="key">{"".join(entries)}</div>\n{drawn}')


def with_notes(page: Page, figure: Figure, height: int | None = None) -> list[Html]:
    """Draw a figure for a page as `plotly_html`, with its caption and its notes below it."""
    return [plotly_html(page, figure, height), *map(note, filter(None, (figure.caption, *figure.notes)))]


def _plotly_entry(label: str, kind: str, color: str, place: int) -> Html:
    """An entry of the legend; the script of the page hides the curves that have its value in `meta`."""
    line = f'<line x2="30" y1="5" y2="5" stroke="{color}" stroke-dasharray="{_LINES[place % len(_LINES)][2]}"/>'
    value = words(f"{kind} {label}")
    return Html(f'<button aria-pressed="true" value="{value}"><svg>{line}</svg>{words(label)}</button>')


def _plotly_panel(figure: Figure, panel: Panel) -> Any:
    from plotly.graph_objects import Figure as Drawing
    from plotly.graph_objects import Scatter

    drawn = Drawing(layout={**PAGE_LAYOUT, "showlegend": False})
    for curve in panel.curves:
        color, place = _style(figure, curve)
        label = [curve.group] if len(figure.groups) > 1 or not curve.part else []
        name = words(", ".join([*label, *([curve.part] if curve.part else [])]))
        meta = [one_line(f"group {curve.group}"), one_line(f"part {curve.part}")]  # as the legend's buttons have it
        if curve.low is not None and curve.high is not None:
            is_known = np.isfinite(curve.low) & np.isfinite(curve.high)
            x, low, high = (values[is_known].tolist() for values in (curve.x, curve.low, curve.high))
            faint = f"rgba({','.join(str(int(color[at : at + 2], 16)) for at in (1, 3, 5))},{_BAND})"
            drawn.add_trace(
                Scatter(
                    x=[*x, *x[::-1]], y=[*high, *low[::-1]], fill="toself", mode="lines", fillcolor=faint,
                    line={"width": 0 if len(x) > 1 else _BAR, "color": faint}, hoverinfo="skip", meta=meta,
                )
            )  # fmt: skip
        line = {"color": color, "width": 2, "dash": _LINES[place % len(_LINES)][1]}
        mode = "lines" if len(curve.x) > _MARKS else "lines+markers"
        drawn.add_trace(
            Scatter(x=curve.x.tolist(), y=curve.center.tolist(), name=name, mode=mode, line=line, meta=meta)
        )
    if len(figure.panels) > 1:
        drawn.update_layout(title={"text": words(panel.title), "x": 0.5, "font": {"size": 14}})
    else:
        drawn.update_layout(margin={"t": 10}).update_yaxes(title_text=words(panel.title))
    drawn.update_xaxes(title_text=words(figure.x_label))
    is_small = all(np.nanmax(np.abs(curve.center), initial=0.0) < _SMALL for curve in panel.curves)
    drawn.update_yaxes(exponentformat="e" if is_small else "B")
    return drawn.update_xaxes(gridcolor=GREY, zeroline=False).update_yaxes(gridcolor=GREY, zeroline=False)
