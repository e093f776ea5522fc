"""marl-eval's JSON, by which users of BenchMARL, Mava and EPyMARL exchange results: written and read.

Gorsane et al., "Towards a standardised performance evaluation protocol for cooperative MARL", NeurIPS 2022; the format
is described in the README of https://github.com/instadeepai/marl-eval:
`{env: {task: {algorithm: {run: {step_1: {step_count, METRIC: [...]}, ..., absolute_metrics: {METRIC: [...]}}}}}}`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from marl_sb3.errors import ConfigError
from marl_sb3.files.atomic import write_whole
from marl_sb3.files.paths import path_is_usable
from marl_sb3.files.regular import read_regular
from marl_sb3.results.records import AGENT_RETURNS, RETURN, STEPS, Groups, RunRecord

# Ours -> theirs: what BenchMARL and Mava call the sum of the agents' returns.
_THEIRS = {RETURN: "return", "env_runners/episode_len_mean": "episode_length"}
_OURS = {theirs: ours for ours, theirs in _THEIRS.items()} | {"mean_episode_return": RETURN, "episode_return": RETURN}
_ABSOLUTE = "absolute_metrics"
_MOST_BYTES = 2**30


def marl_eval_data(
    groups: Groups,
    metrics: Sequence[str] = (),
    points: int | None = None,
    absolute: Mapping[str, Mapping[str, Sequence[float]]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return runs in the form of marl-eval: an env, a task of the same name, and the groups as algorithms.

    Args:
        metrics: further metrics, with our names.
        points: number of steps of each run, at the same env steps in all, as marl-eval needs them to draw curves; None:
            all iterations.
        absolute: run -> their metrics -> values of all episodes of an evaluation; other runs, and runs with nothing,
            have those of the iteration with the best return.
    """
    data: dict[str, Any] = {}
    at_steps = None if points is None else _common_steps(groups, points)
    for label, records in groups.runs.items():
        for number, record in enumerate(records):
            name = f"seed_{record.settings.get('seed', number)}"
            runs = data.setdefault(record.env, {}).setdefault(record.env, {}).setdefault(label, {})
            found = runs[name if name not in runs else f"{name}_{number}"] = _steps(record, metrics, at_steps)
            if _ABSOLUTE in found and absolute.get(record.name):
                found[_ABSOLUTE] = {each: list(values) for each, values in absolute[record.name].items()}
    return data


def _common_steps(groups: Groups, points: int) -> list[int]:
    """Return env steps that all runs have reached, after the first returns of each."""
    runs = [record.steps[np.isfinite(record.column(RETURN))] for record in groups.all]
    runs = [steps for steps in runs if len(steps)]
    if not runs:
        return []
    first, last = max(steps[0] for steps in runs), min(steps[-1] for steps in runs)
    return sorted({round(step) for step in np.linspace(min(first, last), last, points).tolist()})


def _steps(record: RunRecord, metrics: Sequence[str], at_steps: Sequence[int] | None) -> dict[str, Any]:
    names = _THEIRS | {f"{AGENT_RETURNS}/{agent}": f"return_{agent}" for agent in record.agents}
    names |= {metric: metric for metric in metrics if metric not in names}
    columns = {theirs: record.column(ours) for ours, theirs in names.items()}
    steps = record.progress(STEPS)
    known = [row for row in range(len(steps)) if all(np.isfinite(column[row]) for column in columns.values())]
    shown = [(int(steps[row]), row) for row in known]
    if at_steps is not None and known:  # at each, the latest values before it
        places = np.searchsorted(steps[known], at_steps, side="right") - 1
        shown = [(step, known[max(0, place)]) for step, place in zip(at_steps, places.tolist(), strict=True)]
    found: dict[str, Any] = {
        f"step_{place}": {"step_count": step, **{name: [float(column[row])] for name, column in columns.items()}}
        for place, (step, row) in enumerate(shown)
    }
    if known:  # of the best policy; here of the iteration with the best return
        best = max(known, key=lambda row: columns["return"][row])
        found[_ABSOLUTE] = {name: [float(column[best])] for name, column in columns.items()}
    return found


def write_marl_eval(groups: Groups, path: Path, metrics: Sequence[str] = ()) -> Path:
    """Write runs into a file of marl-eval's form; returns its path."""
    return write_whole(path, json.dumps(marl_eval_data(groups, metrics), allow_nan=False, indent=1))


def read_marl_eval(path: Path) -> list[RunRecord]:
    """Read the runs of a file of marl-eval's form; lists of episodes become their means.

    Raises:
        ConfigError: the file cannot be read, or has another form; the message names the place.
    """
    with path_is_usable("cannot read", path, "run"):
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path} has more than {_MOST_BYTES:,} bytes", key="run")
        text = read_regular(path)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}", key="run") from error
    records = []
    for (env, task, algorithm, run), steps in _below(data, 4, str(path)):
        where = f"{path}: {env}/{task}/{algorithm}/{run}"
        results = [_result(step, f"{where}/{name}") for name, step in steps.items() if name != _ABSOLUTE]
        settings = {"algo": algorithm, "seed": run}
        env_name = env if env == task else f"{env}/{task}"
        results.sort(key=lambda result: result[STEPS])
        records.append(RunRecord(f"{path.name}: {algorithm}, {run}", env_name, settings, results))
    return records


def _below(node: Any, depth: int, where: str) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield all mappings that are `depth` levels below a mapping, with the keys that lead to them."""
    if not isinstance(node, Mapping):
        accepted = "marl-eval's form: env, task, algorithm, run, step"
        raise ConfigError(f"{where} is {str(node)[:60]!r}, not a mapping; accepted: {accepted}", key="run")
    if depth == 0:
        yield (), node
        return
    for key, inner in node.items():
        for keys, found in _below(inner, depth - 1, f"{where}: {key}"):
            yield (key, *keys), found


def _result(step: Any, where: str) -> dict[str, Any]:
    if not isinstance(step, Mapping) or not _is_number(step.get("step_count")):
        raise ConfigError(f"{where} has no step_count; accepted: a number of env steps", key="run")
    result: dict[str, Any] = {STEPS: step["step_count"]}
    for name, values in step.items():
        numbers = [each for each in (values if isinstance(values, list) else [values]) if _is_number(each)]
        if name != "step_count" and numbers:
            agent = name.removeprefix("return_")
            ours = _OURS.get(name, f"{AGENT_RETURNS}/{agent}" if agent != name else name)
            result[ours] = float(np.mean(numbers))
    return result


def _is_number(value: Any) -> bool:
    """Whether it is a number that a float holds."""
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
