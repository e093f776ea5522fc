"""Draw the learning curves of presets: a small figure for each env, with a line for each preset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "marl_sb3"}  # small files, the same each time
COLOURS = ("#1f77b4", "#d95f02", "#7570b3", "#1b9e77", "#e7298a", "#666666")
SIDES = ("first player", "second player")

Result = Mapping[str, Any]
Curve = tuple[list[float], list[float]]  # env steps, values
Line = tuple[str, list[Curve]]  # name, curve of each seed


def draw_all(by_name: Mapping[str, Sequence[Result]], folder: Path) -> None:
    """Write `preset_<env>.svg` for each env."""
    folder.mkdir(parents=True, exist_ok=True)
    for env in dict.fromkeys(results[0]["env"] for results in by_name.values()):
        ours = {name: results for name, results in by_name.items() if results[0]["env"] == env}
        draw(env, list(lines_of(ours)), folder / f"preset_{env.rpartition('/')[2]}.svg")


def lines_of(by_name: Mapping[str, Sequence[Result]]) -> Iterator[Line]:
    """Yield the line of each preset: its returns, or in a game a line for each side."""
    for name, results in by_name.items():
        algo = name.partition(":")[0]
        games = "games" in results[0]["evaluation"]
        for column, line in enumerate(SIDES if games else (algo,), start=1):
            yield line, [_column(result["curve"], column) for result in results]


def _column(points: Sequence[Sequence[float]], column: int) -> Curve:
    return [point[0] for point in points], [point[column] for point in points]


def draw(env: str, lines: Sequence[Line], file: Path) -> None:
    """Draw each line as the mean over seeds, with a band from the lowest to the highest."""
    figure, axes = plt.subplots(figsize=(5.2, 2.8), layout="constrained")
    for colour, (name, curves) in zip(COLOURS, lines, strict=False):
        steps, low, mean, high = over_seeds(curves)
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(steps, mean, color=colour, label=name)
    label = "share of won games" if lines[0][0] in SIDES else "return"
    axes.set(title=env, xlabel="env steps", ylabel=label, xlim=(0, None))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:,.0f}k")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def over_seeds(curves: Sequence[Curve]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Return env steps and the lowest, mean and highest value over seeds, at the env steps of the shortest curve."""
    steps = min((steps for steps, _ in curves), key=lambda steps: steps[-1])
    values = np.array([np.interp(steps, *curve) for curve in curves])
    return steps, values.min(0).tolist(), values.mean(0).tolist(), values.max(0).tolist()
