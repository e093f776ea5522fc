"""Make the figures of docs/waterworld.md: `python docs/figures/make_waterworld.py`, with `pip install -e '.[docs]'`.

It trains Waterworld's preset with one policy per agent, for two and for four pursuers and two accelerations, with three
seeds each. It draws `waterworld_curves.png` and a pond as `waterworld.png`, and prints the table of the page. The runs
are kept in `runs/figures/` and are not trained again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from make import HERE, RUNS, curve

import marl_sb3
from marl_sb3.envs.waterworld import WaterworldEnv

mpl.use("Agg")
from matplotlib import pyplot as plt

SEEDS = range(3)
PURSUERS = {2: "#1f77b4", 4: "#d95f02"}
ACCELERATIONS = {0.01: "the default", 0.5: "that of PettingZoo's code"}
COLUMNS = ("`pursuer_max_accel`", "pursuers", "seed", "first episodes", "last 100 episodes", "captures", "poison hits")
COLUMNS += ("seconds", "env steps/s")

Case = tuple[float, int]  # acceleration, number of pursuers


def trained(case: Case, seed: int) -> Path:
    """The folder of the run with this seed, which is trained if it is not there."""
    acceleration, n_pursuers = case
    folder = RUNS / f"waterworld-{acceleration:g}-{n_pursuers}-{seed}"
    if not (folder / "policies").exists():
        settings = {"env.n_pursuers": n_pursuers, "env.pursuer_max_accel": acceleration}
        marl_sb3.train("waterworld", policies="per_agent", seed=seed, settings=settings, run_dir=folder)
    return folder


def draw(runs: Mapping[Case, Sequence[Path]], file: Path) -> None:
    """A panel for each acceleration; a line for the mean over seeds, a band from the worst to the best seed."""
    figure, panels = plt.subplots(1, 2, figsize=(9.6, 3.6), dpi=120, layout="constrained", sharey=True)
    for axes, (acceleration, words) in zip(panels, ACCELERATIONS.items(), strict=True):
        for n_pursuers, colour in PURSUERS.items():
            _draw_curves(axes, runs[acceleration, n_pursuers], f"{n_pursuers} pursuers", colour)
        axes.set(xlabel="env steps", xlim=(0, None), title=f"pursuer_max_accel {acceleration:g}, {words}")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:,.0f}k")
        axes.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set(ylabel="sum of the pursuers' returns")
    panels[0].legend(loc="upper left", frameon=False)
    figure.savefig(file)


def _draw_curves(axes: Any, folders: Sequence[Path], name: str, colour: str) -> None:
    curves = [curve(folder) for folder in folders]
    steps, values = curves[0][0], np.array([values for _, values in curves])
    axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
    axes.plot(steps, values.mean(0), color=colour, label=f"{name}: mean of {len(folders)} seeds, worst to best")


def table(runs: Mapping[Case, Sequence[Path]]) -> str:
    """A Markdown row for each run; returns and events are sums over the pursuers."""
    rows = [list(COLUMNS), ["---"] * len(COLUMNS)]
    for (acceleration, n_pursuers), folders in runs.items():
        for seed, folder in zip(SEEDS, folders, strict=True):
            rows.append([f"{acceleration:g}", str(n_pursuers), str(seed), *_figures(folder)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _figures(folder: Path) -> list[str]:
    rows = [json.loads(line) for line in (folder / "result.jsonl").read_text().splitlines()]
    last, (_, returns) = rows[-1], curve(folder)
    events, seconds = last["env_runners"]["custom_metrics"], last["time_total_s"]
    values = [returns[0], returns[-1], events["captures_mean"], events["poison_hits_mean"]]
    rate = last["num_env_steps_sampled_lifetime"] / seconds
    return [*(f"{value:.1f}" for value in values), f"{seconds:.0f}", f"{rate:,.0f}"]


def pond(file: Path) -> None:
    """A pond with four pursuers."""
    env = WaterworldEnv(n_pursuers=4, render_mode="rgb_array")
    env.reset(seed=3)
    plt.imsave(file, env.render())


def main() -> None:
    """Train what is missing, write both files, print the table."""
    pond(HERE / "waterworld.png")
    cases = [(acceleration, n_pursuers) for acceleration in ACCELERATIONS for n_pursuers in PURSUERS]
    runs = {case: [trained(case, seed) for seed in SEEDS] for case in cases}
    print(table(runs))
    draw(runs, HERE / "waterworld_curves.png")


if __name__ == "__main__":
    main()
