"""What recorded episodes bring: clones, IQL and data in replay buffers, in the arena and in Pendulum.

    python benchmarks/learning_from_data.py [--only cloning,replay,offline] [--seeds 5] [--json FILE]

cloning: for each seed the arena's preset trains a policy for 200,000 env steps, 500 episodes of it are recorded, and
`imitate` trains another policy on them. Both play the same 100 episodes, with sampled actions as the preset says. The
figure is the clone's mean return over that of the policy that it has learned from.

replay: a training of SAC for 10,000 env steps is recorded. For each seed SAC then trains for 5,000 env steps with one
env: with nothing else; with that data in its replay buffer from the start; and with half of each minibatch from the
data. With data, the first update takes 3,000 gradient steps more. After each 1,000 env steps, 20 episodes are
evaluated, the same ones for all.

offline: for each seed, a training is recorded from its first step on, so that bad episodes are in the data with good
ones: SAC in Pendulum, PPO in the arena. On nothing but these data, `imitate` clones a policy of the same algorithm, and
trains one of IQL. The figures are the mean return of the data, and those of the same evaluated episodes.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from command_line import add_count, add_names, parser
from measure import Report, Setting, number, print_table, say

import marl_sb3
from marl_sb3.core.metrics.statistics import sample_stats
from marl_sb3.evaluate import main as evaluate_main
from marl_sb3.extensions.data.dataset import joint_episodes

SETTING = Setting(
    what="arena: PPO with its preset; Pendulum-v1: SAC with its preset and one env",
    hyperparameters={},
    threads="1 torch thread",
    changes={},
)
CLONING = {"timesteps": 200_000, "recorded": 500, "evaluated": 100}
REPLAY = {"recorded": 10_000, "timesteps": 5_000, "updates": 3_000, "evaluated": 20}
# Task -> the algorithm that is recorded and cloned, its env steps, passes of IQL over the data, evaluated episodes, and
# settings of all.
OFFLINE: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {"algo": "sac", "timesteps": 5_000, "epochs": 300, "evaluated": 50, "settings": {}},
    "arena": {"algo": "ppo", "timesteps": 40_000, "epochs": 60, "evaluated": 50, "settings": {}},
}
OF_ARENA: dict[str, Any] = {}  # more settings of the trainings
OF_SAC: dict[str, Any] = {}


def cloned(folder: Path, seed: int) -> dict[str, float]:
    """Return the mean returns of a trained policy and of its clone."""
    quiet: dict[str, Any] = {"progress_bar": False, "seed": seed}
    expert = marl_sb3.train(
        "arena", timesteps=CLONING["timesteps"], run_dir=folder / "expert", settings=OF_ARENA, **quiet
    )
    command = [str(expert.folder), "--checkpoint", "latest", "--episodes", str(CLONING["recorded"]), "--json"]
    with redirect_stdout(io.StringIO()):
        evaluate_main([*command, "--seed", str(1000 + seed), "--record", str(folder / "data")])
    clone = marl_sb3.imitate(folder / "data", "arena", run_dir=folder / "clone", settings=OF_ARENA, **quiet)
    returns = {}
    for name, run in (("expert", expert), ("clone", clone)):
        with closing(marl_sb3.load_run(run.folder, "latest")) as loaded:
            returns[name] = float(loaded.evaluate(CLONING["evaluated"], seed=1)["episode_return_mean"])
    return returns


def offline(env: str, folder: Path, seed: int) -> dict[str, float]:
    """Return the mean return of recorded episodes, and those of what has recorded them, of its clone, and of IQL."""
    task = OFFLINE[env]
    quiet: dict[str, Any] = {"progress_bar": False, "seed": seed}
    quiet["settings"] = task["settings"]
    more: dict[str, Any] = {"timesteps": task["timesteps"], "record": folder / "data"}
    trained = marl_sb3.train(env, algo=task["algo"], run_dir=folder / "online", **more, **quiet)
    say(f"{env}, seed {seed}: recorded")
    clone = marl_sb3.imitate(folder / "data", env, algo=task["algo"], run_dir=folder / "clone", **quiet)
    passes = {"epochs": task["epochs"]}
    iql = marl_sb3.imitate(folder / "data", env, algo="iql", run_dir=folder / "iql", **passes, **quiet)
    joints = joint_episodes(folder / "data")
    returns = {"data": float(np.mean([sum(each.rewards.sum() for each in joint.values()) for joint in joints]))}
    for name, run in (("online", trained), ("clone", clone), ("iql", iql)):
        with closing(marl_sb3.load_run(run.folder, "latest")) as loaded:
            returns[name] = float(loaded.evaluate(task["evaluated"], seed=1)["episode_return_mean"])
    return returns


def replayed(data: Path, folder: Path, seed: int) -> dict[str, list[float]]:
    """Return the evaluated returns of each way to train, one after each 1,000 env steps."""
    from_data = {"replay_data": str(data), "replay_data_updates": REPLAY["updates"]}
    sides: Mapping[str, Mapping[str, Any]] = {
        "online": {},
        "data in the buffer": from_data,
        "half of each minibatch": {**from_data, "replay_data_share": 0.5},
    }
    found = {}
    for side, more in sides.items():
        say(f"replay, seed {seed}: {side}")
        evaluation = {"evaluation.interval": 1, "evaluation.duration": REPLAY["evaluated"], "evaluation.seed": 7}
        settings = {**evaluation, **OF_SAC, **more}
        run_dir = folder / f"{side}-{seed}"
        run = _sac(REPLAY["timesteps"], seed, run_dir, settings=settings)
        found[side] = [result["evaluation"]["env_runners"]["episode_return_mean"] for result in run.results]
    return found


def _sac(timesteps: int, seed: int, run_dir: Path, **more: Any) -> marl_sb3.Run:
    train = partial(marl_sb3.train, "Pendulum-v1", algo="sac", n_envs=1, progress_bar=False)
    return train(timesteps=timesteps, seed=seed, run_dir=run_dir, **more)


def print_cloning(found: Sequence[Mapping[str, float]]) -> None:
    """Print a row for each seed."""
    rows = [
        [str(seed), number(each["expert"]), number(each["clone"]), f"{each['clone'] / each['expert']:.1%}"]
        for seed, each in enumerate(found)
    ]
    print_table(["seed", "trained", "clone", "share"], rows)


def print_replay(found: Sequence[Mapping[str, Sequence[float]]]) -> None:
    """Print the mean over the seeds and its 95 % interval, after each 1,000 env steps."""
    columns = range(len(next(iter(found[0].values()))))
    rows = []
    for side in found[0]:
        stats = [sample_stats([each[side][column] for each in found]) for column in columns]
        cells = [number(each.mean) + (f" ({number(each.ci95[0])} to {number(each.ci95[1])})" if each.ci95 else "")
                 for each in stats]  # fmt: skip
        rows.append([side, *cells])
    print_table(["env steps", *(f"{1000 * (column + 1):,}" for column in columns)], rows)


def print_offline(env: str, found: Sequence[Mapping[str, float]]) -> None:
    """Print the means over the seeds, and what came of each."""
    rows = []
    for name in found[0]:
        values = [each[name] for each in found]
        rows.append([env, name, number(sum(values) / len(values)), ", ".join(map(number, values))])
    print_table(["task", "policy", "mean return", "of each seed"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--only", ("cloning", "replay", "offline"))
    add_count(options, "--seeds", 5, "trainings of each side")
    arguments = options.parse_args(argv)
    SETTING.print()
    report = Report("learning_from_data", SETTING)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if "cloning" in arguments.only:
            returns = [cloned(folder / f"arena-{seed}", seed) for seed in range(arguments.seeds)]
            print_cloning(returns)
            report.results["cloning"] = returns
        if "replay" in arguments.only:
            _sac(REPLAY["recorded"], 100, folder / "recorded", settings=OF_SAC, record=folder / "data")
            curves = [replayed(folder / "data", folder, seed) for seed in range(1, arguments.seeds + 1)]
            print_replay(curves)
            report.results["replay"] = curves
        for env in OFFLINE if "offline" in arguments.only else ():
            found = [offline(env, folder / f"{env}-{seed}", seed) for seed in range(1, arguments.seeds + 1)]
            print_offline(env, found)
            report.results[f"offline, {env}"] = found
    report.write(arguments.json)


if __name__ == "__main__":
    main()
