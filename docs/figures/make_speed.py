"""Make `speed.png` from `measurements.yaml`: `python docs/figures/make_speed.py`; it needs the extra docs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))

from measured import turns

from marl_sb3.results.drawing import COLORS

FILE = Path(__file__).parent / "speed.png"
OURS, THEIRS = COLORS[0], "#9A9A9A"


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
    axes.set_ylim(len(turns) - 0.5, -0.5)
    axes.margins(x=0.35)
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(length=0)


def draw(file: Path) -> None:
    """Env steps per second, and below them seconds to a return: narrow, so that a phone shows it in letters to read."""
    speeds = {
        "stock SB3, one shared policy": turns("stock_shared"),
        "marl_sb3, one shared policy": turns("ours_shared"),
        "RLlib, one policy per agent": turns("rllib"),
        "marl_sb3, one policy per agent": turns("ours_beside_rllib"),
    }
    reached = {"RLlib": turns("rllib_reach"), "marl_sb3": turns("ours_reach")}
    figure = Figure(figsize=(5.4, 3.4), dpi=130, layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[len(speeds), len(reached)])
    bars(upper, "env steps per second", speeds, ",.0f")
    bars(lower, "seconds to a return of 15", reached, ".3g")
    figure.savefig(file)


if __name__ == "__main__":
    draw(FILE)
