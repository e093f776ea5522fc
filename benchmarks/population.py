"""Population based training beside searches with as many env steps, and beside the preset.

    python benchmarks/population.py [--envs arena] [--sides NAME,...] [--timesteps 60000] [--seeds 5]
        [--json FILE]

For each seed of a search: a population of 8 (`--sampler pbt`), 8 random trials, and as many trials of TPE with the
default pruner as have about the same env steps in all. They search the same space, without rollouts and networks, which
a population cannot change; `tpe-all` searches these, too. The preset is 8 trainings that differ in their seeds alone.
Three figures of each, means over the seeds of the searches: `best run` is the mean return of the best trial's
policies, which were chosen by the evaluations of the search, in 100 fresh episodes; `its settings again` is that of
trainings with the settings that the search found and fresh seeds (of a population with all their changes), in the same
episodes; and the processor seconds of all trials. All evaluations choose actions as the preset says.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from command_line import add_count, add_names, parser
from measure import Report, Setting, number, print_table, say
from trainings import one_torch_thread

import marl_sb3
from marl_sb3.core.metrics.statistics import sample_stats
from marl_sb3.runs.settings import load_config
from marl_sb3.tools.tuning.study import TuneStudy

SETTING = Setting(
    what="PPO with the preset of each env, but for the settings that are searched; 10 evaluations of 10 episodes",
    hyperparameters={},
    threads="1 torch thread, 1 worker",
    changes={},
)
ENVS = ("arena", "mpe2/simple_spread-v3")
FIGURES = ("best run", "its settings again", "env steps", "CPU seconds")
MEMBERS = 8
EVALUATIONS = 10
EPISODES = 100
FRESH = 3  # trainings with the settings that a search has found
# Side -> options of `tune`.
SIDES: dict[str, Mapping[str, Any]] = {
    "pbt": {"sampler": "pbt", "trials": MEMBERS},
    "random": {"sampler": "random", "pruner": "none", "trials": MEMBERS},
    "tpe": {"sampler": "tpe", "trials": 14},
    "tpe-all": {"sampler": "tpe", "trials": 14},
    "preset": {"sampler": "random", "pruner": "none", "trials": MEMBERS},
}
# What a population cannot search: as in the presets, but for tpe-all.
FIXED: dict[str, Any] = {"n_steps": 100, "policy_kwargs.net_arch": [64, 64]}
SETTINGS: dict[str, Any] = {}  # more settings of all trainings


def found(side: str, env: str, timesteps: int, seed: int, folder: Path) -> dict[str, float]:
    """Return the figures of one search."""
    options: dict[str, Any] = {**SIDES[side], "timesteps": timesteps, "seed": seed, "evaluations": EVALUATIONS}
    if side == "preset":
        options["space"] = {"gamma": {"choices": [load_config(env).hyperparameters["gamma"]]}}
    settings = {**({} if side == "tpe-all" else FIXED), **SETTINGS}
    options |= {"study": f"{side}-{seed}", "new_study": True, "root": folder, "confirm_seeds": 0}
    study = marl_sb3.tune(env, settings=settings, **options)
    best = study.folder_of(study.best_trial)
    return {
        "best run": returns_of(marl_sb3.load_run(best, "latest")),
        "its settings again": sum(again(study, timesteps, FRESH * seed + n) for n in range(FRESH)) / FRESH,
        "env steps": env_steps(study),
        "CPU seconds": sum(trial.user_attrs.get("cpu_seconds") or 0.0 for trial in study.trials),
    }


def again(study: TuneStudy, timesteps: int, index: int) -> float:
    """Train with the settings that a search has found and a fresh seed; return the mean return."""
    fresh: dict[str, Any] = {"seed": 1_000 + index, "run_dir": study.folder / "again" / f"{index}"}
    run = marl_sb3.train(hparams=study.folder / "best.yml", timesteps=timesteps, progress_bar=False, **fresh)
    return returns_of(run)


def returns_of(run: Any) -> float:
    """Return the mean sum of returns of a run's policies in the episodes that all play."""
    return float(run.evaluate(EPISODES, seed=10_000)["episode_return_mean"])


def env_steps(study: TuneStudy) -> float:
    """Return the env steps of all trials; a member of a population goes on from another trial."""
    steps = [trial.user_attrs.get("env_steps") or 0 for trial in study.trials]
    parents = [trial.user_attrs["parent"] for trial in study.trials if "parent" in trial.user_attrs]
    return float(sum(steps) - sum(steps[parent] for parent in parents))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--envs", ENVS)
    add_names(options, "--sides", SIDES)
    add_count(options, "--timesteps", 60_000, "env steps of a trial")
    add_count(options, "--seeds", 5, "searches of each side")
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    results: dict[str, dict[str, Any]] = {}
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="marl_sb3-") as folder:
        for env in arguments.envs:
            for seed in range(1, arguments.seeds + 1):
                for side in arguments.sides:
                    figures = found(side, env, arguments.timesteps, seed, Path(folder))
                    say(f"{env} {side} {seed}: {figures}")
                    for name, value in figures.items():
                        results.setdefault(f"{env}, {side}", {}).setdefault(name, []).append(value)
            rows += [[env, side, *map(_words, results[f"{env}, {side}"].values())] for side in arguments.sides]
    print_table(["env", "side", *FIGURES], rows)
    Report("population", SETTING, results).write(arguments.json)


def _words(values: Sequence[float]) -> str:
    stats = sample_stats(values)
    interval = "" if stats.ci95 is None else f" ({number(stats.ci95[0])} to {number(stats.ci95[1])})"
    return f"{number(stats.mean)}{interval}" if max(values) < _MANY else f"{number(stats.mean)}"


_MANY = 10_000  # env steps and the like have no interval

if __name__ == "__main__":
    main()
