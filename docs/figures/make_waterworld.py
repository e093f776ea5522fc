"""Make the figures of docs/waterworld.md: `python docs/figures/make_waterworld.py`, with `pip install -e '.[docs]'`.

It trains Waterworld's preset with one policy per agent, for two and for four pursuers, and for two that accelerate
faster, with three seeds each. It draws `waterworld_curves.png` and a pond as `waterworld.png`, and prints the table of
the page. The runs are kept in `runs/figures/` and are not trained again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from make import HERE, RUNS, curve

import marl_sb3
from marl_sb3.envs.waterworld import WaterworldEnv

mpl.use("Agg")
from matplotlib import pyplot as plt

SEEDS = range(3)

Case = tuple[float, int]  # pursuer_max_accel, number of pursuers

CASES: Mapping[Case, str] = {(0.01, 2): "#1f77b4", (0.01, 4): "#d95f02", (0.5, 2): "#7570b3"}  # 0.01 is the default
COLUMNS = ("pursuers", "`pursuer_max_accel`", "seed", "first episodes", "last 100 episodes", "captures", "poison hits")
COLUMNS += ("seconds", "env steps/s")


def trained(case: Case, seed: int) -> Path:
    """The folder of the run with this seed, which is trained if it is not there."""
    acceleration, n_pursuers = case
    folder = RUNS / f"waterworld-{acceleration:g}-{n_pursuers}-{seed}"
    if not (folder / "policies").exists():
        settings = {"env.n_pursuers": n_pursuers, "env.pursuer_max_accel": acceleration}
        marl_sb3.train("waterworld", policies="per_agent", seed=seed, settings=settings, run_dir=folder)
    return folder


def draw(runs: Mapping[Case, Sequence[Path]], file: Path) -> None:
    """A line for the mean over seeds, a band from the worst to the best seed."""
    figure, axes = plt.subplots(figsize=(7.2, 3.8), dpi=130, layout="constrained")
    for (acceleration, n_pursuers), folders in runs.items():
        curves = [curve(folder) for folder in folders]
        steps, values = curves[0][0], np.array([values for _, values in curves])
        colour = CASES[acceleration, n_pursuers]
        axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
        label = f"{n_pursuers} pursuers, pursuer_max_accel {acceleration:g}"
        axes.plot(steps, values.mean(0), color=colour, label=label)
    axes.set(xlabel="env steps", ylabel="sum of the pursuers' returns", xlim=(0, None))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.axhline(0, color="#999999", linewidth=0.8, linestyle=":")
    axes.legend(loc="lower right", frameon=False, title=f"mean of {len(SEEDS)} seeds, worst to best")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def table(runs: Mapping[Case, Sequence[Path]]) -> str:
    """A Markdown row for each run; returns and events are sums over the pursuers."""
    rows = [list(COLUMNS), ["---"] * len(COLUMNS)]
    for (acceleration, n_pursuers), folders in runs.items():
        for seed, folder in zip(SEEDS, folders, strict=True):
            rows.append([str(n_pursuers), f"{acceleration:g}", str(seed), *_figures(folder)])
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
    runs = {case: [trained(case, seed) for seed in SEEDS] for case in CASES}
    print(table(runs))
    draw(runs, HERE / "waterworld_curves.png")


if __name__ == "__main__":
    main()
