"""Make the figure and the table of docs/presets.md: `python docs/figures/make_presets.py`.

    pip install -e '.[docs]' 'pettingzoo[classic,sisl]' mpe2

It trains each preset with seed 0, draws `presets.png`, prints the table of the page, and lets the trained policy of
rock-paper-scissors play against the opponent that knows it. The runs are kept in `runs/figures/` and are not trained
again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from make import HERE, RUNS
from stable_baselines3 import PPO

import marl_sb3

mpl.use("Agg")
from matplotlib import pyplot as plt

SEED = 0
COLOURS = ("#1f77b4", "#d95f02")
MOVES = 3  # rock, paper, scissors; each beats the one before it
ROUNDS = 15  # of an episode

Row = Mapping[str, Any]  # of result.jsonl


@dataclass(frozen=True)
class Preset:
    """An env with a preset."""

    env: str  # its id
    groups: tuple[tuple[str, str], ...]  # what a line of the figure is called, and how the names of its agents begin
    algo: str = "ppo"  # whose preset it is

    @property
    def folder(self) -> Path:
        """Of the run."""
        return RUNS / f"preset-{self.env.replace('/', '_')}"

    @property
    def command(self) -> str:
        """That trains the preset."""
        algo = "" if self.algo == "ppo" else f" --algo {self.algo}"
        return f"python -m marl_sb3.train {self.env}{algo} --seed {SEED}"


PURSUIT = Preset("sisl/pursuit-v5", (("a pursuer", "pursuer_"),))
MULTIWALKER = Preset("sisl/multiwalker-v9", (("a walker", "walker_"),))
SPREAD = Preset("mpe2/simple_spread-v3", (("an agent", "agent_"),))
TAG = Preset("mpe2/simple_tag-v3", (("an adversary", "adversary_"), ("the prey", "agent_")))
SIDES = (("first player", "player_1"), ("second player", "player_2"))
TICTACTOE = Preset("classic/tictactoe-v3", SIDES, "maskable_ppo")
RPS = Preset("classic/rps-v2", (("player_0", "player_0"), ("player_1", "player_1")))
PRESETS = (SPREAD, TAG, PURSUIT, MULTIWALKER, TICTACTOE, RPS)


def trained(preset: Preset) -> list[Row]:
    """The results of the preset's iterations with finished episodes; it is trained if there is no run."""
    if not (preset.folder / "policies").exists():
        marl_sb3.train(preset.env, algo=preset.algo, seed=SEED, run_dir=preset.folder)
    rows = [json.loads(line) for line in (preset.folder / "result.jsonl").read_text().splitlines()]
    return [row for row in rows if row["env_runners"]["episode_return_mean"] is not None]


def returns(rows: Sequence[Row], prefix: str) -> list[float]:
    """The mean return of an agent whose name begins so, after each iteration."""
    means = [row["env_runners"]["agent_episode_returns_mean"] for row in rows]
    return [float(np.mean([value for agent, value in row.items() if agent.startswith(prefix)])) for row in means]


def draw(results: Mapping[Preset, Sequence[Row]], file: Path) -> None:
    """A panel for each preset, with a line for each group of its agents."""
    figure, panels = plt.subplots(2, 3, figsize=(10, 5.4), dpi=130, layout="constrained")
    for axes, (preset, rows) in zip(panels.flat, results.items(), strict=True):
        steps = [row["num_env_steps_sampled_lifetime"] for row in rows]
        for colour, (group, prefix) in zip(COLOURS, preset.groups, strict=False):
            axes.plot(steps, returns(rows, prefix), color=colour, label=group)
        axes.set(title=preset.env, xlim=(0, None))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:,.0f}k")
        axes.legend(loc="best", frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("env steps")
    figure.supylabel("mean return")
    figure.savefig(file)
    plt.close(figure)


def table(results: Mapping[Preset, Sequence[Row]]) -> str:
    """A Markdown row for each preset."""
    columns = ("command", "env steps", "seconds", "mean return", "first episodes", "last episodes")
    lines = [list(columns), ["---"] * len(columns)]
    for preset, rows in results.items():
        begin = [f"`{preset.command}`", f"{rows[-1]['num_env_steps_sampled_lifetime']:,}"]
        begin.append(f"{rows[-1]['time_total_s']:.0f}")
        for group, prefix in preset.groups:
            values = returns(rows, prefix)
            lines.append([*begin, group, f"{values[0]:.2f}", f"{values[-1]:.2f}"])
            begin = [""] * len(begin)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def move_probabilities(path: Path) -> np.ndarray:
    """What a policy plays after each move of the opponent and, in the last row, at the start; (4, 3)."""
    policy = PPO.load(path, device="cpu").policy
    with torch.no_grad():
        distribution: Any = policy.get_distribution(torch.arange(MOVES + 1)).distribution
    return np.asarray(distribution.probs.numpy(), dtype=np.float64)


def exploitability(probabilities: np.ndarray) -> float:
    """The mean return of an episode of the opponent that knows the policy; 0 for the uniform one, at most 15."""
    gains = np.array([[(0, -1, 1)[(other - own) % MOVES] for other in range(MOVES)] for own in range(MOVES)])
    paid = probabilities @ gains.T  # by the opponent's last move, and its next one
    value = np.zeros(MOVES)
    for _ in range(ROUNDS - 1):
        value = (paid[:MOVES] + value).max(axis=1)
    return float((paid[MOVES] + value).max())


def main() -> None:
    """Train what is missing, write the figure, print the tables."""
    results = {preset: trained(preset) for preset in PRESETS}
    print(table(results))
    draw(results, HERE / "presets.png")
    probabilities = move_probabilities(RPS.folder / "policies" / "shared.zip")
    print(probabilities.round(2), f"exploitability {exploitability(probabilities):.2f}")


if __name__ == "__main__":
    main()
