"""What came of a benchmark: a table, learning curves, and JSON in marl-eval's form."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from marl_sb3.core.metrics.statistics import bootstrap_interval, interquartile_mean
from marl_sb3.evaluation.played import OUTCOMES
from marl_sb3.extensions.display.page import Page, note
from marl_sb3.extensions.display.tables import Table
from marl_sb3.extensions.display.text import duration, number
from marl_sb3.files.atomic import named_by_user, write_whole
from marl_sb3.files.paths import path_is_usable
from marl_sb3.files.regular import read_json, read_regular
from marl_sb3.results.curves import Figure, draw_up
from marl_sb3.results.drawing import with_notes, write_figure
from marl_sb3.results.exchange import marl_eval_data
from marl_sb3.results.reading import read_run
from marl_sb3.results.records import RETURN, group_by_argument
from marl_sb3.tools.benchmarking.plan import OUTCOME, Benchmark, BenchmarkEnv, Training

HEAD = ("env", "algorithm", "seeds", "env steps", "measured", "IQM (95 %)", "random", "seconds", "CPU s", "env steps/s")
POINTS = 20  # evaluations of a run in marl-eval's form


class RandomResult(Struct):
    """What random agents reach in an env, as `working` writes it; files of it may come from elsewhere."""

    metrics: dict[str, float | None]


class TrainingResult(RandomResult, kw_only=True):
    """What a training came to, as `working` writes it."""

    deterministic: bool | dict[str, bool]
    episodes: dict[str, list[float | None] | float | None]  # a number, if there was one episode
    env_steps: Annotated[int, Meta(ge=0)]
    seconds: Annotated[float, Meta(ge=0)] | None
    processor_seconds: Annotated[float, Meta(ge=0)] | None


def result_of(training: Training) -> TrainingResult | None:
    """Read what a training came to; None if it is not done.

    Raises:
        ConfigError: the file is something else.
    """
    file = training.result_file
    return read_json(file, TrainingResult, "result of a training") if os.path.lexists(file) else None


def how_it_ended(training: Training) -> str:
    """Say in a line what came of a training that has ended."""
    result, failure = result_of(training), training.failure_file
    if result is None:
        with path_is_usable("cannot read", failure, "folder"):
            why = read_regular(failure).decode(errors="replace").partition("\n")[0]
        return f"{training}: failed: {why}; see {failure}"
    values = [f"{_words(name, result)} {number(result.metrics.get(name))}" for name in _shown(training.env, result)]
    return f"{training}: {', '.join(values)}; {duration(result.seconds or 0.0)}"


def _shown(env: BenchmarkEnv, result: TrainingResult) -> Sequence[str]:
    """Return the metrics that are shown of an env: those that its file names, or the usual ones."""
    if env.metrics:
        return env.metrics
    if env.against:
        return [name for name in result.metrics if name.endswith("/won")]
    return ["episode_return_mean"]


def _words(name: str, result: TrainingResult) -> str:
    several = sum(each.startswith("agent_episode_returns_mean/") for each in result.metrics) > 1
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
    return what if result.deterministic is True else f"{what}, sampled actions"


# --- The table -------------------------------------------------------------------------------------------------------


def tables(benchmark: Benchmark) -> list[Table]:
    """Return a table for each env, its name the title: rows are metrics, and below them references."""
    return [Table(HEAD, list(of_env), name) for name, of_env in groupby(_rows(benchmark), key=lambda row: row[0])]


def _rows(benchmark: Benchmark) -> Iterator[Sequence[str]]:
    for env, algos in benchmark.pairs.items():
        file, first = env.random_file, ""
        at_random = read_json(file, RandomResult, "result of random agents").metrics if os.path.lexists(file) else {}
        for algo, trainings in algos.items():
            results = [result for result in map(result_of, trainings) if result is not None]
            seeds = str(len(results)) if len(results) == len(trainings) else f"{len(results)} of {len(trainings)}"
            if not results:
                yield [env.name, algo, seeds, *["-"] * (len(HEAD) - 3)]
                continue
            steps = sorted({result.env_steps for result in results})
            reached = " to ".join(f"{each:,}" for each in dict.fromkeys((steps[0], steps[-1])))
            costs = [median(each.seconds or 0.0 for each in results)]
            costs += [median(each.processor_seconds or 0.0 for each in results)]
            speeds = [each.env_steps / each.seconds for each in results if each.seconds]
            speed = f"{median(speeds):,.0f}" if speeds else "-"
            for name in _shown(env, results[0]):
                values = [value for each in results if (value := each.metrics.get(name)) is not None]
                measured = _words(name, results[0])
                first = first or measured
                figures = [interval(values), number(at_random.get(name)), *(number(cost, 1) for cost in costs), speed]
                yield [env.name, algo, seeds, reached, measured, *figures]
        for who, value in env.references.items():
            yield [env.name, who, "", "", first, number(value), "", "", "", ""]


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


# --- Files -----------------------------------------------------------------------------------------------------------


def write_outcome(benchmark: Benchmark, curves: str | None = None, out: Path | None = None) -> list[Path]:
    """Write the table, the JSON, and figures of learning curves and a page if wanted; returns the files.

    Args:
        curves: ending of the figures' files, such as `png`; None: there are none.
        out: the file of the page, which is not among those that are returned; None: there is none.
    """
    figures: dict[str, Figure] = {}
    files = [write_whole(benchmark.folder / OUTCOME[0], Table(HEAD, list(_rows(benchmark))).markdown())]
    data: dict[str, Any] = {}
    for env, algos in benchmark.pairs.items():
        done = {algo: [each for each in trainings if each.result_file.exists()] for algo, trainings in algos.items()}
        done = {algo: trainings for algo, trainings in done.items() if trainings}
        if not done:
            continue
        # By algorithm, under the env's name in the file.
        groups = group_by_argument(
            {algo: [replace(read_run(each.folder), env=env.name) for each in of] for algo, of in done.items()}
        )
        absolute = {
            str(each.folder): {
                name: [value or 0.0 for value in (values if isinstance(values, list) else [values])]
                for name, values in result.episodes.items()
            }
            for of_algo in done.values()
            for each in of_algo
            if (result := result_of(each)) is not None
        }
        data |= marl_eval_data(groups, points=POINTS, absolute=absolute)
        if curves is not None or out is not None:
            figures[env.name] = draw_up(groups, [RETURN], statistic="iqm")
        if curves is not None:
            path = benchmark.folder / f"{env.folder.name}.{curves}"
            files.append(write_figure(figures[env.name], path, env.name))
    if data:
        text = json.dumps(data, allow_nan=False, indent=1)
        files.append(write_whole(benchmark.folder / OUTCOME[1], text))
    if out is not None:
        with named_by_user(out):
            _page(benchmark, figures).write(out)
    return files


def _page(benchmark: Benchmark, figures: Mapping[str, Figure]) -> Page:
    """Make the page of a benchmark: for each env a table and the learning curves, and what has failed."""
    page = Page(f"Benchmark {Path(benchmark.file).stem}")
    explained = (
        "IQM: interquartile mean over the seeds of what the trained policies reach, with its 95 % interval; random: "
        "what random agents reach. Seconds are medians of the rollouts and updates of a training. Curves are of the "
        "episodes in the training, not of those after it that the table measures."
    )
    for table in tables(benchmark):
        parts = [table.columns(HEAD[1:]).html(), *map(note, filter(None, [explained]))]
        explained = ""
        if (figure := figures.get(table.title)) is not None:
            parts += with_notes(page, figure)
        page.add(table.title, *parts)
    failed = [how_it_ended(each) for each in benchmark.trainings if each.failure_file.exists()]
    if failed:
        page.add("Failed", *map(note, failed))
    return page
