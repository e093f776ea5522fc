"""What came of a benchmark: a table, learning curves, and JSON in marl-eval's form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from marl_sb3.core.metrics import bootstrap_interval, interquartile_mean
from marl_sb3.evaluation import OUTCOMES
from marl_sb3.extensions.display import duration, number
from marl_sb3.files import write_whole
from marl_sb3.results import (
    RETURN,
    Groups,
    draw_up,
    group_by_argument,
    marl_eval_data,
    read_run,
    write_figure,
)
from marl_sb3.tools.benchmarking.plan import Benchmark, EnvOfBenchmark, Training

HEAD = ("env", "algorithm", "seeds", "env steps", "measured", "IQM (95 %)", "random", "seconds", "CPU s")
POINTS = 20  # evaluations of a run in marl-eval's form

Result = Mapping[str, Any]  # what `working` has written of a training


def result_of(training: Training) -> Result | None:
    """Read what a training came to; None if it is not done."""
    file = training.result_file
    found: Result | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    return found


def how_it_ended(training: Training) -> str:
    """Say in a line what came of a training that has ended."""
    result, failure = result_of(training), training.failure_file
    if result is None:
        return f"{training}: failed: {failure.read_text(encoding='utf-8').partition(chr(10))[0]}; see {failure}"
    values = [f"{_words(name, result)} {number(result['metrics'].get(name))}" for name in _shown(training.env, result)]
    return f"{training}: {', '.join(values)}; {duration(result['seconds'] or 0.0)}"


def _shown(env: EnvOfBenchmark, result: Result) -> Sequence[str]:
    """Return the metrics that are shown of an env: those that its file names, or the usual ones."""
    if env.metrics:
        return env.metrics
    if env.evaluation.against:
        return [name for name in result["metrics"] if name.endswith("/won")]
    return ["episode_return_mean"]


def _words(name: str, result: Result) -> str:
    several = sum(each.startswith("agent_episode_returns_mean/") for each in result["metrics"]) > 1
    words = {
        "episode_return_mean": "sum of returns" if several else "return",
        "return_per_agent_mean": "mean return of an agent",
        "episode_len_mean": "episode length",
    }
    what = words.get(name, name.replace("agent_episode_returns_mean/", "return of "))
    opponent, _, rest = name.partition("/")
    for outcome in OUTCOMES:
        if rest.endswith(f"/{outcome}"):
            what = f"{outcome} as {rest.removesuffix(f'/{outcome}')} against {opponent}"
    return what if result["deterministic"] is True else f"{what}, sampled actions"


# --- The table -------------------------------------------------------------------------------------------------------


def rows(benchmark: Benchmark) -> Iterator[Sequence[str]]:
    """Yield the rows of the table, the columns of which are `HEAD`: one for each metric; references below each env."""
    for env, algos in benchmark.pairs.items():
        file, first = env.random_file, ""
        at_random = json.loads(file.read_text(encoding="utf-8"))["metrics"] if file.exists() else {}
        for algo, trainings in algos.items():
            results = [result for result in map(result_of, trainings) if result is not None]
            seeds = str(len(results)) if len(results) == len(trainings) else f"{len(results)} of {len(trainings)}"
            if not results:
                yield [env.name, algo, seeds, *["-"] * (len(HEAD) - 3)]
                continue
            steps = sorted({result["env_steps"] for result in results})
            reached = " to ".join(f"{each:,}" for each in dict.fromkeys((steps[0], steps[-1])))
            costs = [median(result[key] or 0.0 for result in results) for key in ("seconds", "processor_seconds")]
            for name in _shown(env, results[0]):
                values = [value for each in results if (value := each["metrics"].get(name)) is not None]
                measured = _words(name, results[0])
                first = first or measured
                figures = [interval(values), number(at_random.get(name)), *(number(cost, 1) for cost in costs)]
                yield [env.name, algo, seeds, reached, measured, *figures]
        for who, value in env.references.items():
            yield [env.name, who, "", "", first, number(value), "", "", ""]


def interval(values: Sequence[float]) -> str:
    """Say the interquartile mean over seeds, and its interval by bootstrap if there are several."""
    if not values:
        return "-"
    array = np.array(values, dtype=float)
    middle = number(float(interquartile_mean(array)))
    if len(values) == 1:
        return middle
    low, high = bootstrap_interval(array, interquartile_mean)
    return f"{middle} ({number(float(low))} to {number(float(high))})"


def markdown(benchmark: Benchmark) -> str:
    """Return the table in Markdown."""
    lines = [HEAD, ["---"] * len(HEAD), *rows(benchmark)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# --- Files -----------------------------------------------------------------------------------------------------------


def write_outcome(benchmark: Benchmark, curves: str | None = None) -> list[Path]:
    """Write the table, the JSON, and figures of learning curves if wanted; returns the files.

    Args:
        curves: ending of the figures' files, such as `png`; None: there are none.
    """
    files = [write_whole(benchmark.folder / "table.md", markdown(benchmark))]
    data: dict[str, Any] = {}
    for env, algos in benchmark.pairs.items():
        done = {algo: [each for each in trainings if each.result_file.exists()] for algo, trainings in algos.items()}
        done = {algo: trainings for algo, trainings in done.items() if trainings}
        if not done:
            continue
        groups = _groups(env, done)
        absolute = {
            str(each.folder): (result_of(each) or {})["episodes"] for of_algo in done.values() for each in of_algo
        }
        data |= marl_eval_data(groups, points=POINTS, absolute=absolute)
        if curves is not None:
            figure = draw_up(groups, [RETURN], statistic="iqm")
            files.append(write_figure(figure, benchmark.folder / f"{env.folder.name}.{curves}", env.name))
    if data:
        text = json.dumps(data, allow_nan=False, indent=1)
        files.append(write_whole(benchmark.folder / "marl_eval.json", text))
    return files


def _groups(env: EnvOfBenchmark, done: Mapping[str, Sequence[Training]]) -> Groups:
    """Return the runs of an env by algorithm, under the env's name in the file."""
    records = {
        algo: [replace(read_run(each.folder), env=env.name) for each in of_algo] for algo, of_algo in done.items()
    }
    return group_by_argument(records)
