"""Make the figure and the table of NashConv in docs/how_to/evaluation.md: `python docs/figures/make_nash_conv.py`.

    pip install -e '.[docs,openspiel]'

It trains in Leduc poker, or in `kuhn_poker` if that is its argument, by plain self-play and in leagues, with and
without a bonus for entropy that falls. It draws `nash_conv_leduc_poker.png`, and prints the table. The runs are kept in
`runs/figures/` and are not trained again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib as mpl
from make import HERE, RUNS

import marl_sb3

mpl.use("Agg")
from matplotlib import pyplot as plt

T_OF_SEEDS = {2: 12.706, 3: 4.303, 5: 2.776}  # Student's t, 97.5 %
ITERATIONS = {"leduc_poker": 50, "kuhn_poker": 10}  # of 4,096 env steps
POINTS = 10  # of each curve

LEAGUE = {"league.snapshot_every": 1, "league.pool_size": 20}
RIVAL = {"rival": {"of": "shared", "reset_every": 10}}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "plain self-play": {"league.self_play": 1.0},  # the pool only watches: its members play in no episode
    "league, uniform, all games": {"league.self_play": 0.0, "league.sampling": "uniform", "league.pool_size": 500},
    "league, hard": {"league.sampling": "hard"},
    "league, even": {"league.sampling": "even"},
    "league, hard, exploiter": {"league.sampling": "hard", "league.exploiters": RIVAL},
}
BONUS = {"no bonus": 0.0, "bonus": "exp_1.0_0.05"}
# How many seeds there are of each way to train, with and without the bonus.
SEEDS: Mapping[str, Mapping[tuple[str, str], int]] = {
    "leduc_poker": {
        ("plain self-play", "no bonus"): 5,
        ("plain self-play", "bonus"): 5,
        ("league, uniform, all games", "bonus"): 3,
        ("league, hard", "bonus"): 3,
        ("league, uniform, all games", "no bonus"): 1,
        ("league, hard", "no bonus"): 1,
        ("league, even", "bonus"): 1,
        ("league, hard, exploiter", "bonus"): 1,
    },
    "kuhn_poker": {
        ("plain self-play", "no bonus"): 3,
        ("plain self-play", "bonus"): 3,
        ("league, hard", "bonus"): 3,
    },
}
COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a")

Found = Mapping[str, Any]


def measured(game: str, way: str, bonus: str, seed: int) -> Found:
    """Train, unless it is done, and return the NashConv of the policy over time, and of the pool at the end."""
    folder = RUNS / "-".join([game, *way.replace(",", "").split(), *bonus.split(), str(seed)])
    file = folder / "nash_conv.json"
    if file.exists():
        return json.loads(file.read_text())  # type: ignore[no-any-return]
    began, env, iterations = time.process_time(), f"open_spiel/{game}", ITERATIONS[game]
    settings = {"ent_coef": BONUS[bonus], **LEAGUE, **WAYS[way]}
    if not (folder / "policies").exists():
        marl_sb3.train(
            env,
            hparams="hparams/maskable_ppo.poker.yml",
            timesteps=4096 * iterations,
            seed=seed,
            run_dir=folder,
            settings={**settings, "checkpoints.every": iterations // POINTS, "checkpoints.keep": POINTS},
        )
    seconds = time.process_time() - began
    at = [iterations * point // POINTS for point in range(1, POINTS + 1)]
    policies = [marl_sb3.load_policies(folder, str(number)) for number in at]
    last = [marl_sb3.nash_conv(bundle, env)["nash_conv"] for bundle in policies]
    pool = marl_sb3.nash_conv(folder)["pool"]["nash_conv"]
    found = {"env_steps": [4096 * number for number in at], "last": last, "pool": pool, "seconds": seconds}
    file.write_text(json.dumps(found))
    return found


def interval(values: Sequence[float]) -> str:
    """The mean over seeds with a 95 % interval by Student's t; of one seed, what it is."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    half = T_OF_SEEDS[len(values)] * stdev(values) / len(values) ** 0.5
    return f"{mean(values):.2f} ({mean(values) - half:.2f} to {mean(values) + half:.2f})"


def print_table(of: Mapping[tuple[str, str], Sequence[Found]]) -> None:
    """For docs/how_to/evaluation.md."""
    print("| trained by | bonus for entropy | seeds | last policy | best of ten | pool | CPU seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (way, bonus), runs in of.items():
        columns = [[run["last"][-1] for run in runs], [min(run["last"]) for run in runs], [run["pool"] for run in runs]]
        words = " | ".join(interval(values) for values in columns)
        print(f"| {way} | {bonus} | {len(runs)} | {words} | {mean(run['seconds'] for run in runs):.0f} |")


def draw(game: str, of: Mapping[tuple[str, str], Sequence[Found]], file: Path) -> None:
    """A line for each way to train with several seeds: the mean over them, and from the least to the most."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for (way, bonus), runs in of.items():
        if len(runs) < 2:
            continue
        steps, curves = runs[0]["env_steps"], list(zip(*(run["last"] for run in runs), strict=True))
        colour = COLOURS[list(WAYS).index(way)]
        line = "-" if bonus == "bonus" else "--"
        axes.plot(steps, [mean(each) for each in curves], line, color=colour, label=f"{way}, {bonus}")
        axes.fill_between(steps, [min(x) for x in curves], [max(x) for x in curves], color=colour, alpha=0.12)
    axes.set(xlabel="env steps", ylabel="NashConv", ylim=(0, None), title=game)
    axes.legend(fontsize="small")
    figure.savefig(file, dpi=120)


def main() -> None:
    """Measure, draw, print."""
    game = sys.argv[1] if len(sys.argv) > 1 else "leduc_poker"
    of = {
        (way, bonus): [measured(game, way, bonus, 1 + seed) for seed in range(number)]
        for (way, bonus), number in SEEDS[game].items()
    }
    draw(game, of, HERE / f"nash_conv_{game}.png")
    print_table(of)


if __name__ == "__main__":
    main()
