"""A match in words, in tables, and on a page with heat maps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_sb3.core.config.values import counted
from marl_sb3.core.metrics.statistics import SampleStats
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.playing import actions_in_words
from marl_sb3.extensions.display.page import Html, Page, note, words
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.display.tables import Table
from marl_sb3.extensions.display.text import number, one_line
from marl_sb3.files.atomic import named_by_user, write_whole
from marl_sb3.results.curves import Curve, Figure, Panel
from marl_sb3.results.drawing import PAGE_LAYOUT, plotly_html
from marl_sb3.startup import require_extra

if TYPE_CHECKING:
    from marl_sb3.tools.viewing.matching import Match, Points

SUFFIXES = (".html", ".json")
_MOST_WITH_TEXT = 16  # players; with more, the cells of a heat map are too small for numbers
_LONGEST_WHOLE = 40  # characters of a name that is never folded in a terminal's table
_MOST_CYCLES = 5  # that are listed
_CELL, _EDGES = 46, 130  # pixels
_LONGEST_NAME = 14  # characters of a player's name on a heat map, of which there is little room on a phone
_COLORS = ((0.0, "#D55E00"), (0.5, "#F2F2F2"), (1.0, "#0072B2"))  # of Okabe and Ito

_CHECKPOINT = re.compile(r"(?P<kind>.+)[-@](?P<iteration>[0-9]{1,12})")


def require_writable(path: Path) -> None:
    """Refuse a file that is neither a page nor JSON, is a folder or in a file; or a page without the package for it."""
    around = next(folder for folder in path.absolute().parents if folder.exists())
    if path.suffix not in SUFFIXES or path.is_dir() or not around.is_dir():
        why = f", and {around} is no folder" if not around.is_dir() else ", a folder" if path.is_dir() else ""
        raise ConfigError(f"--out is {path}{why}; accepted: a file that ends with {' or '.join(SUFFIXES)}", key="--out")
    if path.suffix == ".html":
        require_extra(path.name, "report")


def write(found: Match, path: Path) -> Path:
    """Write a page, FILE.html, or the result itself, FILE.json; returns the path."""
    require_writable(path)
    with named_by_user(path, "out"):
        if path.suffix == ".json":
            return write_whole(path, json.dumps(found.to_plain(), allow_nan=False))
        page = Page(f"Match in {found.env}")
        for heading, parts in sections(page, found):
            page.add(heading, *parts)
        return page.write(path)


def show_match(found: Match) -> None:
    """Print a match."""
    console = standard_console()
    whole = [1] if max(len(one_line(player.name)) for player in found.players) <= _LONGEST_WHOLE else []
    console.print(one_line(_how(found)), soft_wrap=True)
    for table, shorter in zip(tables(found, intervals=True), tables(found, intervals=False), strict=True):
        (table if table.width <= console.width else shorter).print(console, whole=whole)
    for line in [*sentences(found), *(f"note: {line}" for line in found.notes)]:
        console.print(one_line(line), soft_wrap=True)


def sentences(found: Match) -> list[str]:
    """What was found, in words."""
    lines = [] if found.opposed is None else [found.opposed]
    if found.opposed is None:
        why = found.doubt or "no side wins what the others lose"
        lines.append(f"{why}, so there are no ratings: compare the mean returns of each side")
    if found.unfair is not None:
        words = f"side {_side(found.unfair)} has won nearly every episode that was not drawn, with any player"
        lines.append(
            f"{words}: so a player wins by the higher sum of mean returns over both sides, in the episodes of a seed"
        )
    for cycle in found.cycles[:_MOST_CYCLES]:
        ring = " > ".join([*cycle.players, cycle.players[0]])
        lines.append(f"cycle: {ring}: {'each wins' if cycle.certain else 'perhaps, each has won'} against the next one")
    left = len(found.cycles) - _MOST_CYCLES
    lines += [f"{counted(left, 'more cycle')} among the best"] if left > 0 else []
    if any(cycle.certain for cycle in found.cycles):
        lines.append("ratings cannot show a cycle: the table of points does")
    return lines


def _how(found: Match) -> str:
    sides = " against ".join(map(_side, found.sides))
    how = actions_in_words(found.deterministic)
    how += f", {counted(found.search, 'position')} looked at before each" if found.search else ""
    return (
        f"{found.env}: {len(found.players)} players, {sides}, {counted(found.episodes, 'episode')} of each two in each "
        f"order, {how}, seed {found.seed}"
    )


def _side(name: str) -> str:
    return one_line(name)[:40]


# --- Tables ----------------------------------------------------------------------------------------------------------


def tables(found: Match, *, intervals: bool) -> Iterator[Table]:
    """The tables of a match: the players, the strongest first; points; where these do not tell all, mean returns."""
    shows_returns = found.opposed is None or found.unfair is not None
    yield _players(found, found.sides if shows_returns else ())
    if found.opposed is not None:
        cells = [[_share(cell, intervals) for cell in row] for row in found.points]
        yield _square(found, "points of the row against the column, %", found.points, cells)
    if not shows_returns:
        return
    others = "the other side" if len(found.sides) == 2 else "all other sides"
    for side, returns in found.returns.items():
        title = f"mean return of {_side(side)}: the row plays it, the column {others}"
        yield _square(found, title, returns, [[_mean(stats, intervals) for stats in row] for row in returns])


def _square(
    found: Match, title: str, values: Sequence[Sequence[object | None]], cells: Sequence[Sequence[str]]
) -> Table:
    """A table of players against players."""
    (rows, columns), ranks = _seated(found, values), _ranks(found)
    listed = [[ranks[one], one_line(found.players[one].name), *(cells[one][two] for two in columns)] for one in rows]
    return Table(["", "player", *(ranks[two] for two in columns)], listed, title, numbers_from=2)


def _ranks(found: Match) -> dict[int, str]:
    """The numbers of the players in all tables, in their order: 1 is the strongest; those without a rating follow."""
    ratings = [-np.inf if each.rating is None else each.rating.rating for each in found.players]
    order = sorted(range(len(ratings)), key=lambda place: -ratings[place])
    return {place: str(rank) for rank, place in enumerate(order, start=1)}


def _seated(found: Match, cells: Sequence[Sequence[object | None]]) -> tuple[list[int], list[int]]:
    """The rows and the columns of a table that have a value: some players cannot take each side."""
    rows = [one for one in _ranks(found) if any(cell is not None for cell in cells[one])]
    return rows, [two for two in _ranks(found) if any(row[two] is not None for row in cells)]


def _players(found: Match, sides: Iterable[str]) -> Table:
    """The players with their ratings, and their mean returns on some sides."""
    rated = any(each.rating is not None for each in found.players)
    head = ["", "player", *(["rating", "95 %", "points %"] if rated else [])]
    head += [f"{_side(side)}, {what}" for side in sides for what in ("own", "others")]
    rows = []
    for place, rank in _ranks(found).items():
        player = found.players[place]
        row = [rank, one_line(player.name)]
        if rated and player.rating is not None:
            low, high = player.rating.ci95
            met = [cell for cell in found.points[place] if cell is not None]
            episodes = sum(cell.won + cell.drawn + cell.lost for cell in met)
            share = sum(cell.won + cell.drawn / 2 for cell in met) / max(1, episodes)  # of the points in all its games
            row += [f"{player.rating.rating:+.0f}", f"{low:+.0f} to {high:+.0f}", f"{100 * share:.0f}"]
        elif rated:
            row += ["", "", ""]
        for side in sides:
            row += [_mean(player.own.get(side), True), _mean(player.against_others.get(side), True)]
        rows.append(row)
    return Table(head, rows, numbers_from=2)


def _share(points: Points | None, intervals: bool) -> str:
    if points is None:
        return ""
    interval = f" ({100 * points.ci95[0]:.0f} to {100 * points.ci95[1]:.0f})" if intervals else ""
    return f"{100 * points.share:.0f}{interval}"


def _mean(stats: SampleStats | None, intervals: bool) -> str:
    if stats is None or stats.mean is None:
        return ""
    margin = None if stats.ci95 is None or not intervals else (stats.ci95[1] - stats.ci95[0]) / 2
    return number(stats.mean) if margin is None else f"{number(stats.mean)} ± {number(margin)}"


# --- The page --------------------------------------------------------------------------------------------------------


def players(found: Match) -> list[Html]:
    """The table of players, and what was found in words."""
    table = _players(found, found.sides)
    explained = (
        "Ratings are on Elo's scale: with 400 more, a player wins ten times as often as it loses; the mean is 0. "
        if "rating" in table.head
        else ""
    ) + "Own: mean return of a side where the player takes all sides; others: where others take the other sides."
    lines = [_how(found), *sentences(found), *(f"Note: {line}" for line in found.notes)]
    return [table.html(), note(explained), *map(note, lines)]


def sections(page: Page, found: Match) -> Iterator[tuple[str, list[Html]]]:
    """The sections of a page about a match: the players, how runs became better, and heat maps."""
    yield "Players", players(found)
    progress = _progress(found)
    if progress.panels:
        text = "Ratings of the checkpoints of a run against each other and the other players, with 95 % intervals."
        yield "Did it get better?", [plotly_html(page, progress), note(text)]
    if found.opposed is not None:
        shares = [[None if cell is None else 100 * cell.share for cell in row] for row in found.points]
        hints = [
            [
                f"{_share(cell, True)} %<br>{cell.won} won, {cell.drawn} drawn, {cell.lost} lost"
                if cell is not None
                else ""
                for cell in row
            ]
            for row in found.points
        ]
        look = _look(0.0, 100.0, 0, "points, %; white: even")
        yield "Points of the row against the column, %", [_heat_map(page, found, shares, hints, look)]
    means = {
        side: [[None if stats is None else stats.mean for stats in row] for row in returns]
        for side, returns in found.returns.items()
    }
    # One scale for all sides: the same return has the same colour.
    most = max((abs(mean) for rows in means.values() for row in rows for mean in row if mean is not None), default=0.0)
    digits = min(4, max(0, 2 - math.floor(math.log10(most)))) if most else 0
    look = _look(-most or -1.0, most or 1.0, digits, "mean return; white: 0")
    for side, returns in found.returns.items():
        texts = [[_mean(stats, True) for stats in row] for row in returns]
        text = "The row plays it, the column the others. On the diagonal a player plays with itself."
        heat_map = _heat_map(page, found, means[side], texts, look)
        yield f"Mean return of {_side(side)}", [heat_map, note(text)]


def _look(low: float, high: float, digits: int, legend: str) -> dict[str, Any]:
    """Return Plotly's settings of a heat map with values between two bounds; the middle is white."""
    title = {"text": legend, "side": "top"}
    bar = {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yanchor": "top", "thickness": 12, "title": title}
    bar |= {"lenmode": "pixels", "len": 220}
    return {"zmin": low, "zmax": high, "texttemplate": f"%{{z:.{digits}f}}", "colorbar": bar, "colorscale": _COLORS}


def _heat_map(
    page: Page,
    found: Match,
    values: Sequence[Sequence[float | None]],
    hints: Sequence[Sequence[str]],
    look: Mapping[str, Any],
) -> Html:
    from plotly.graph_objects import Figure as Drawing
    from plotly.graph_objects import Heatmap

    rows, columns = _seated(found, values)
    ranks, names = _ranks(found), [player.name for player in found.players]
    names = [name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}" for name in names]
    heat = Heatmap(
        z=[[values[one][two] for two in columns] for one in rows],
        x=[ranks[two] for two in columns],
        y=[f"{ranks[one]} {words(names[one])}" for one in rows],
        customdata=[[hints[one][two] for two in columns] for one in rows],
        hovertemplate="%{y} against %{x}: %{customdata}<extra></extra>",
        **{**look, "texttemplate": look["texttemplate"] if len(columns) <= _MOST_WITH_TEXT else ""},
    )
    drawn = Drawing(heat)
    layout = {**PAGE_LAYOUT, "hovermode": "closest", "margin": {"t": 30, "r": 10, "l": 20, "b": 80}}
    drawn.update_layout(**layout, height=_CELL * len(rows) + _EDGES)
    axis = {"type": "category", "showgrid": False}
    drawn.update_xaxes(**axis, side="top").update_yaxes(**axis, autorange="reversed", automargin=True)
    return page.figure(drawn)


def _progress(found: Match) -> Figure:
    """The ratings of the checkpoints of each run that has several, and of the members of its league, by iteration."""
    by_kind: dict[str, list[tuple[int, float, float, float]]] = {}
    for each in found.players:
        if each.rating is not None and (named := _CHECKPOINT.fullmatch(each.checkpoint or "")):
            kind = each.source if named["kind"] == "ckpt" else f"{each.source}, {named['kind']}"
            by_kind.setdefault(kind, []).append((int(named["iteration"]), each.rating.rating, *each.rating.ci95))
    curves = [Curve(kind, "", *np.array(sorted(rows)).T) for kind, rows in by_kind.items() if len(rows) > 1]
    return Figure([Panel("rating", "rating", curves)] if curves else [], "iteration")
