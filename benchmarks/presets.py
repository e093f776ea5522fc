"""Train the presets with several seeds; print a table and draw curves of the returns that they reach.

    python benchmarks/presets.py [--presets ALGO:ENV,...] [--seeds 0,1,2] [--processes N] [--folder DIR] [--draw DIR]

Each training is that of `python -m marl_sb3.train ENV --algo ALGO --seed SEED`, in one thread of its own process.
Afterwards the policies are evaluated as the preset says, with the most probable actions or with sampled ones. Games of
two players are trained by self-play, and evaluated against a player that takes random legal moves and against the
players of the package.

`--folder` keeps `results.jsonl`, with a line for each finished training, and `table.md`. Trainings that it has are not
repeated, so that an interrupted benchmark can be continued. `--draw` needs matplotlib (`pip install -e '.[docs]'`).

`--variants FILE` trains with other settings than those of the presets. The YAML file maps preset -> name -> settings,
as for `--set`:

    dqn:CartPole-v1:
      slow: {learning_rate: 0.0005, policy_kwargs.net_arch: [64, 64]}
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from command_line import add_count, add_names, parser, positive
from measure import Report, Setting, say
from preset_jobs import Budget, Job, run_jobs
from scipy.stats import trim_mean
from trainings import one_torch_thread

from marl_sb3.files import read_yaml

PRESETS = (
    "maskable_ppo:classic/connect_four-v3",
    "maskable_ppo:classic/tictactoe-v3",
    "sac:waterworld",
    "ppo:waterworld",
    "td3:Pendulum-v1",
    "sac:Pendulum-v1",
    "recurrent_ppo:arena",
    "dqn:arena",
    "recurrent_ppo:CartPole-v1",
    "dqn:CartPole-v1",
    "ppo:CartPole-v1",
    "trpo:CartPole-v1",
    "trpo:arena",
    "a2c:arena",
    "ppo:arena",
)  # roughly from the longest training to the shortest

SETTING = Setting(
    what="presets of hparams/, each with several seeds",
    hyperparameters={},
    threads="1 thread for each training",
    changes={"A": "batched envs, where an env has a batched twin", "B": "fused networks, where they fit"},
    packages=("marl_sb3", "stable-baselines3", "sb3-contrib", "torch", "numpy", "pettingzoo", "gymnasium"),
)

Result = dict[str, Any]


def jobs_of(presets: Iterable[str], seeds: Sequence[int], variants: Mapping[str, Any] | None) -> list[Job]:
    """Return all trainings: every preset or variant with the first seed, then with the second, and so on."""
    named = variants or {preset: {"": {}} for preset in presets}
    return [
        Job(*preset.split(":", 1), seed, variant, settings)
        for seed in seeds
        for preset, each in named.items()
        for variant, settings in each.items()
    ]


class Results:
    """The results in a folder.

    Args:
        folder: made if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.file = folder, folder / "results.jsonl"
        lines = self.file.read_text(encoding="utf-8").splitlines() if self.file.exists() else []
        self.all: list[Result] = [json.loads(line) for line in lines]

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs without a result; one that stopped early counts as having none."""
        done = {(result["name"], result["seed"]) for result in self.all if result.get("complete")}
        return [job for job in jobs if (job.name, job.seed) not in done]

    def add(self, job: Job, result: Result) -> None:
        """Write a result to the folder and print it."""
        result = {"name": job.name, "seed": job.seed, **result}
        self.all.append(result)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        (self.folder / "table.md").write_text(table(self.by_name()), encoding="utf-8")
        say(f"{time.strftime('%H:%M:%S')} {job.name}, seed {job.seed}: {words_for(result)}")

    def by_name(self, names: Iterable[str] | None = None) -> dict[str, list[Result]]:
        """Return preset or variant -> its latest result of each seed, sorted by seed, without those that failed."""
        latest = {(result["name"], result["seed"]): result for result in self.all if "error" not in result}
        found: dict[str, list[Result]] = {}
        for (name, _), result in sorted(latest.items()):
            found.setdefault(name, []).append(result)
        return found if names is None else {name: found[name] for name in names if name in found}


def reached(result: Result) -> dict[str, str]:
    """Return name of a measurement -> its value, both in words."""
    found = result["evaluation"]
    stopped = "" if result["complete"] else " (stopped early)"
    if "games" in found:
        return {
            f"won, drawn, lost as the {side} player against {opponent}": (
                ", ".join(f"{share:.1%}" for share in shares.values()) + stopped
            )
            for opponent, sides in found["games"].items()
            for side, shares in sides.items()
        }
    several = len(found["agent_episode_returns_mean"]) > 1
    what = f"{'sum of returns' if several else 'return'}{'' if found['deterministic'] else ', sampled actions'}"
    return {what: f"{found['episode_return_mean']:.2f}{stopped}"}


def words_for(result: Result) -> str:
    """Describe a result in one line."""
    if "error" in result:
        return str(result["error"])
    return f"{result['train_s']:.0f} s, " + ", ".join(f"{what} {value}" for what, value in reached(result).items())


def middle(results: Sequence[Result]) -> str:
    """Return the interquartile mean of the sums of returns over seeds, and its 95 % interval by bootstrap, in words.

    Agarwal et al. 2021, https://arxiv.org/abs/2108.13264, show why this mean; of fewer than four seeds it is the mean.
    """
    sums = [result["evaluation"].get("episode_return_mean") for result in results]
    if len(sums) < 2 or None in sums:
        return ""
    drawn = np.random.default_rng(0).choice(np.array(sums, dtype=float), (10_000, len(sums)))
    low, high = np.quantile(trim_mean(drawn, 0.25, axis=1), (0.025, 0.975))
    return f"{trim_mean(sums, 0.25):.2f} ({low:.2f} to {high:.2f})"


def table(by_name: Mapping[str, Sequence[Result]]) -> str:
    """Return a Markdown table with a row for each preset and measurement; seconds are medians over seeds."""
    seeds = sorted({result["seed"] for results in by_name.values() for result in results})
    head = ["arguments", "env steps", "CPU seconds", "seconds", "measured", *(f"seed {seed}" for seed in seeds), "IQM"]
    lines = [head, ["---"] * len(head)]
    for name, results in by_name.items():
        arguments = results[0]["arguments"] if results[0]["variant"] == "" else name
        seconds = [f"{median(result[key] for result in results):.0f}" for key in ("train_cpu_s", "train_s")]
        begin = [f"`{arguments}`", f"{results[0]['env_steps']:,}", *seconds]
        by_seed = {result["seed"]: reached(result) for result in results}
        for what in reached(results[0]):
            of_all = middle(results) if begin[0] else ""
            lines.append([*begin, what, *(by_seed.get(seed, {}).get(what, "") for seed in seeds), of_all])
            begin = [""] * len(begin)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def facts(results: Sequence[Result]) -> dict[str, Any]:
    """Return the results of a preset for JSON."""
    keys = ("seed", "arguments", "complete", "env_steps", "train_s", "train_cpu_s", "evaluation", "curve")
    return {"raw": [{key: result[key] for key in keys} for result in results]}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the trainings that have no result yet, and print the table."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--presets", PRESETS, metavar="ALGO:ENV,...")
    options.add_argument("--variants", type=Path, metavar="FILE", help="train these settings instead of --presets")
    options.add_argument("--seeds", type=integers, default=[0, 1, 2], metavar="N,N", help="default: 0,1,2")
    add_count(options, "--processes", 1, "trainings at the same time")
    options.add_argument("--timesteps", type=positive, metavar="N", help="env steps; default: those of the preset")
    add_count(
        options,
        "--episodes",
        100,
        "episodes of each evaluation; in games on each side ten times as many, against strong players twice as many",
    )
    options.add_argument(
        "--limit-s", type=float, default=float("inf"), metavar="S", help="stop after so many seconds; default: never"
    )
    options.add_argument("--folder", type=Path, metavar="DIR", help="keep results here; default: nowhere")
    options.add_argument("--draw", type=Path, metavar="DIR", help="draw a figure for each env; default: none")
    arguments = options.parse_args(argv)
    one_torch_thread()
    budget = Budget(arguments.timesteps, arguments.episodes, time.monotonic() + arguments.limit_s)
    variants = None if arguments.variants is None else read_yaml(arguments.variants)
    jobs = jobs_of(arguments.presets, arguments.seeds, variants)
    with tempfile.TemporaryDirectory() as nowhere:
        results = Results(arguments.folder or Path(nowhere))
        run_jobs(results.missing(jobs), budget, arguments.processes, results.add)
    by_name = results.by_name(dict.fromkeys(job.name for job in jobs))
    SETTING.print()
    print(table(by_name), end="")
    if arguments.draw is not None:
        from preset_curves import draw_all  # noqa: PLC0415 - matplotlib is needed for nothing else

        draw_all(by_name, arguments.draw)
    Report("presets", SETTING, {name: facts(each) for name, each in by_name.items()}).write(arguments.json)


def integers(text: str) -> list[int]:
    """Parse integers that are separated by commas, for `argparse`."""
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
