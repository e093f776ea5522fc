"""Let the explorers and hunters of several runs in the arena meet, whether they see cells or rows and columns.

    python benchmarks/arena_cross_play.py runs/*/

A run folder is called PRESET-SEED. Actions are sampled. Strangers are all other runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from marl_sb3 import load_policies
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.types import Array

SIDE, STEPS = 10, 100  # of the arena by default
Policies = Mapping[str, Any]  # agent -> SB3 algorithm


def play(explorers: Sequence[Policies], hunters: Sequence[Policies], episodes: int, seed: int) -> Array:
    """Return the mean returns of explorer and hunter, (explorers, hunters, 2), by the arena's rules."""
    rng, shape = np.random.default_rng(seed), (len(explorers), len(hunters), episodes)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    arenas = ArenaEnv.make_batched(int(np.prod(shape)), height=SIDE, width=SIDE, max_timesteps=STEPS)
    arenas.reset(range(arenas.num_envs), rng.integers(2**63, size=arenas.num_envs).tolist())
    returns = np.zeros((*shape, 2))
    for _ in range(STEPS):
        seen, actions = arenas.observations().reshape(*shape, 2, 2), np.zeros((*shape, 2), dtype=np.int64)
        for number, policies in enumerate(explorers):
            actions[number, ..., 0] = _actions(policies["agent1"], seen[number, ..., 0, :])
        for number, policies in enumerate(hunters):
            actions[:, number, :, 1] = _actions(policies["agent2"], seen[:, number, :, 1, :])
        returns += arenas.step(actions.reshape(-1, 2)).rewards.reshape(returns.shape)
    means: Array = returns.mean(axis=2)
    return means


def _actions(policy: Any, cells: Array) -> Array:
    """Return sampled actions for cells, (..., 2), as the policy sees them."""
    rows = cells.reshape(-1, 2)
    if policy.observation_space.shape == (4,):
        rows = np.stack(np.divmod(rows, SIDE), axis=-1).reshape(-1, 4)
    actions: Array = policy.predict(rows, deterministic=False)[0]
    return actions.reshape(cells.shape[:-1])


def spread(values: Sequence[float]) -> str:
    """Return the mean over seeds, the 95 % interval by Student's t from three seeds on, and each seed's value."""
    half = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1) if len(values) > 2 else np.nan
    return f"{np.mean(values):.1f} ± {half:.1f} ({', '.join(f'{value:.1f}' for value in values)})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what each preset earns on both sides, and a table of one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, PRESET-SEED")
    parser.add_argument("--episodes", type=int, default=200, help="of each pair; default: 200")
    parser.add_argument("--seed", type=int, default=0, help="seed of the games; default: 0")
    options = parser.parse_args(arguments)
    names = [path.name for path in options.runs]
    loaded = [load_policies(path, checkpoint="latest") for path in options.runs]
    players = [{agent: own.policies[policy] for agent, policy in own.policy_of.items()} for own in loaded]
    returns = play(players, players, options.episodes, options.seed)
    strange, presets = ~np.eye(len(names), dtype=np.bool_), [name.rpartition("-")[0] for name in names]
    print("preset: explorer own, strangers, worst; hunter own, strangers; sum as the explorer against strangers")
    for preset in dict.fromkeys(presets):
        runs = [number for number, of in enumerate(presets) if of == preset]
        met = [(returns[n][strange[n]], returns[:, n][strange[n]]) for n in runs]
        numbers = (
            [returns[n, n, 0] for n in runs],
            [hunters[:, 0].mean() for hunters, _ in met],
            [hunters[:, 0].min() for hunters, _ in met],
            [returns[n, n, 1] for n in runs],
            [explorers[:, 1].mean() for _, explorers in met],
            [hunters.sum(axis=1).mean() for hunters, _ in met],
        )
        print(f"{preset:12}", " | ".join(spread(each) for each in numbers))
    print("explorers of the row, hunters of the column, strangers: returns of both")
    for preset, own in ((preset, np.array(presets) == preset) for preset in dict.fromkeys(presets)):
        others = [strange & own[:, None] & (np.array(presets) == other) for other in dict.fromkeys(presets)]
        met = ["{:.1f} / {:.1f}".format(*returns[each].mean(axis=0)) if each.any() else "-" for each in others]
        print(f"{preset:12}", " | ".join(met))


if __name__ == "__main__":
    main()
