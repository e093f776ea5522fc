"""Make `speed.png`: `python docs/figures/make_speed.py SB3.json RLLIB.json`; it needs the extra docs.

The files are what `benchmarks/arena_vs_stock_sb3.py --json SB3.json` and `benchmarks/arena_vs_rllib.py ... --json
RLLIB.json` have written on the same machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from marl_sb3.results import COLORS

FILE = Path(__file__).parent / "speed.png"
OURS, THEIRS = COLORS[0], "#9A9A9A"
ROWS = 4


def bars(axes: Axes, title: str, turns: Mapping[str, Sequence[float]], shown: str) -> None:
    """A bar for the median of each side, and a point for each turn."""
    for place, (side, values) in enumerate(turns.items()):
        middle = median(values)
        axes.barh(place, middle, color=OURS if side.startswith("marl_sb3") else THEIRS, height=0.62)
        axes.plot(values, [place] * len(values), "o", color="#222222", markersize=2.5)
        axes.annotate(
            f"{middle:{shown}}", (max(values), place), (5, 0), textcoords="offset points", va="center", fontsize="small"
        )
    axes.set_yticks(range(len(turns)), list(turns))
    axes.set_ylim(ROWS - 0.5, -0.5)
    axes.margins(x=0.2)
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(length=0)


def draw(stock: Mapping[str, Any], rllib: Mapping[str, Any], file: Path) -> None:
    """Env steps per second on the left, and seconds to a return on the right."""
    per_agent = {f"{side}, one policy per agent": turns for side, turns in rllib["throughput"]["raw"].items()}
    shared = {side: turns for side, turns in stock["throughput"]["raw"].items() if "shared" in side}
    figure = Figure(figsize=(8.6, 2.4), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.5, 1])
    bars(left, "env steps per second", {**shared, **per_agent}, ",.0f")
    bars(right, "seconds to a return of 15", rllib["reach"]["raw"], ".1f")
    figure.savefig(file)


if __name__ == "__main__":
    draw(*(json.loads(Path(name).read_text(encoding="utf-8"))["results"] for name in sys.argv[1:]), FILE)
