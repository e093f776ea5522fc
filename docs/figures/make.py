"""Make the figures of the README: `python docs/figures/make.py`, in a clone with `pip install -e '.[docs]'`.

It trains the arena's preset with ten seeds, once with one shared policy and once with one policy per agent (a minute
or two on two cores), draws `learning_curve.png`, records the best of the shared runs as `arena.gif`, and prints the
table of docs/measurements.md. The runs are kept in `runs/figures/` and are not trained again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import marl_sb3
from marl_sb3 import evaluate
from marl_sb3.results.curves import draw_up
from marl_sb3.results.drawing import matplotlib_figure
from marl_sb3.results.reading import read_records
from marl_sb3.results.records import group_by_argument

SEEDS = range(10)
POLICIES = {"shared": "one shared policy", "per_agent": "one policy per agent"}
RUNS = Path("runs") / "figures"
HERE = Path(__file__).parent
METRIC = "episode_return_mean"
RANDOM_AGENTS = -8.27  # sum of returns of uniformly random agents, mean of 10,000 episodes


def trained(policies: str, seed: int) -> Path:
    """The folder of the run with this seed, which is trained if it is not there."""
    folder = RUNS / f"{policies}-{seed}"
    if not (folder / "policies").exists():
        marl_sb3.train("arena", policies=policies, seed=seed, run_dir=folder)
    return folder


def curve(folder: Path) -> tuple[list[int], list[float]]:
    """Env steps and the mean sum of returns after each iteration that has finished episodes."""
    rows = [json.loads(line) for line in (folder / "result.jsonl").read_text().splitlines()]
    points = [(row["num_env_steps_sampled_lifetime"], row["env_runners"][METRIC]) for row in rows]
    known = [(steps, value) for steps, value in points if value is not None]
    return [steps for steps, _ in known], [value for _, value in known]


def draw(runs: Mapping[str, Sequence[Path]], file: Path) -> None:
    """As `python -m marl_sb3.plot runs/figures` draws it, with the target and what random agents get."""
    groups = group_by_argument(
        {
            POLICIES[policies]: [record for folder in folders for record in read_records(folder)]
            for policies, folders in runs.items()
        }
    )
    figure = matplotlib_figure(draw_up(groups, [f"env_runners/{METRIC}"]))
    (axes,) = figure.axes
    for value, words, line in ((15, "15: the target", "--"), (RANDOM_AGENTS, "random agents", ":")):
        axes.axhline(value, color="#555555", linewidth=0.8, linestyle=line)
        axes.annotate(
            words, (200_000, value), (0, 3), textcoords="offset points", ha="right", color="#555555", fontsize="small"
        )
    axes.set(ylabel="sum of both agents' returns", xlim=(0, 200_000))
    figure.savefig(file)


def film(folders: Sequence[Path], file: Path) -> None:
    """An episode of the run that learned most."""
    best = max(folders, key=lambda folder: curve(folder)[1][-1])
    assert evaluate.main([str(best), "--stochastic", "--video", str(file)]) == 0


def table(runs: Mapping[str, Sequence[Path]]) -> str:
    """A Markdown row for what each kind of policies reaches, seed by seed, with mean and standard deviation."""
    rows = [["seed", *map(str, SEEDS), "mean", "SD"], ["---"] * (len(SEEDS) + 3)]
    for policies, folders in runs.items():
        curves = [curve(folder) for folder in folders]
        steps = [next(step for step, value in zip(*points, strict=True) if value >= 15) / 1000 for points in curves]
        rows.append(_row(f"{POLICIES[policies]}: thousand env steps to 15", steps, ".0f"))
        rows.append(_row("sum of returns at 200,000", [values[-1] for _, values in curves], ".1f"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(name: str, values: Sequence[float], shown: str) -> list[str]:
    return [name, *(f"{value:{shown}}" for value in values), f"{np.mean(values):.1f}", f"{np.std(values, ddof=1):.1f}"]


def main() -> None:
    """Train what is missing, write both files, print the table."""
    runs = {policies: [trained(policies, seed) for seed in SEEDS] for policies in POLICIES}
    print(table(runs))
    draw(runs, HERE / "learning_curve.png")
    film(runs["shared"], HERE / "arena.gif")


if __name__ == "__main__":
    main()
