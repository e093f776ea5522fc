"""What a finished run has left in its folder, and in what two of them differ that should not."""

from __future__ import annotations

import csv
import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder

# Names that begin so tell how long something took.
WALL_CLOCK_METRICS = ("timers/", "throughput/", "perf/", "time_total_s", "env_runners/episode_duration_sec_mean")
WALL_CLOCK_METRICS += ("evaluation/env_runners/episode_duration_sec_mean",)
WALL_CLOCK_METRICS += ("fault_tolerance/",)  # how often processes were replaced
WALL_CLOCK_STATE = ("counters/time_total_s", "tracker/running_s", "tracker/finished/duration_s")


def differences(reference: Path, run: Path) -> list[str]:
    """In what a run differs from the one that was not disturbed, wall-clock times left out; empty if in nothing."""
    found = [
        *_mappings("config.yaml", _config(reference), _config(run)),
        *_checkpoints(reference, run),
        *differences_in_training(reference, run),
        *_mappings("policies", _policies(reference), _policies(run)),
        *_resumes(run),
    ]
    return [*found, *(f"{path.name} is left over" for path in run.glob("**/.unfinished-*"))]


def differences_in_training(reference: Path, run: Path) -> list[str]:
    """In what the logs and the latest checkpoints differ: those of runs whose configurations need not be the same."""
    latest = [contents(CheckpointFolder(each / "checkpoints").load("latest")) for each in (reference, run)]
    return [
        *_mappings("latest checkpoint", *latest),
        *_rows("result.jsonl", json_rows(reference), json_rows(run)),
        *_rows("progress.csv", csv_rows(reference), csv_rows(run)),
        *_events(reference, run),
    ]


def _mappings(where: str, expected: Mapping[str, Any], got: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*expected, *got}):
        if name not in got:
            yield f"{where}: {name} is missing"
        elif name not in expected:
            yield f"{where}: {name} should not be there"
        elif expected[name] != got[name]:
            yield f"{where}: {name} is {_short(got[name])}, was {_short(expected[name])}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:77]}..."


def _config(run: Path) -> dict[str, str]:
    return dict(enumerate((run / "config.yaml").read_text().splitlines()))  # type: ignore[arg-type]


# --- Checkpoints -----------------------------------------------------------------------------------------------------


def _checkpoints(reference: Path, run: Path) -> Iterator[str]:
    best = [contents(CheckpointFolder(each / "checkpoints").load("best")) for each in (reference, run)]
    yield from _mappings("best checkpoint", *best)
    names = [CheckpointFolder(each / "checkpoints").names() for each in (reference, run)]
    yield from (f"{name} is not kept" for name in names[0] if name not in names[1])


def contents(checkpoint: Checkpoint) -> dict[str, Any]:
    """Every leaf of a checkpoint by its path, arrays to the last bit."""
    tensors = {f"{file}/{name}": value for file, group in checkpoint.tensors.items() for name, value in group.items()}
    tree = {"name": checkpoint.name, "state": checkpoint.state, "tensors": tensors}
    found = {path: value for path, value in leaves(tree) if not path.endswith(WALL_CLOCK_STATE)}
    return {**found, "score": checkpoint.about.fields("score").value("value")}


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree with their paths, arrays as bytes."""
    if isinstance(node, (dict, list)):
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            yield from leaves(child, f"{path}/{key}")
    elif isinstance(node, np.ndarray):
        yield path, (str(node.dtype), node.shape, node.tobytes())
    else:
        yield path, (type(node).__name__, node)


# --- Logs ------------------------------------------------------------------------------------------------------------


def json_rows(run: Path) -> list[dict[str, Any]]:
    """The rows of `result.jsonl` without wall-clock metrics."""
    return [_timeless(flatten(json.loads(line))) for line in (run / "result.jsonl").read_text().splitlines()]


def csv_rows(run: Path) -> list[dict[str, Any]]:
    """The rows of `progress.csv` without wall-clock metrics."""
    with (run / "progress.csv").open(newline="") as file:
        return [_timeless(row) for row in csv.DictReader(file)]


def _timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith(WALL_CLOCK_METRICS)}


def _rows(where: str, expected: list[dict[str, Any]], got: list[dict[str, Any]]) -> Iterator[str]:
    if len(expected) != len(got):
        yield f"{where} has {len(got)} rows, not {len(expected)}"
    for number, (left, right) in enumerate(zip(expected, got, strict=False), start=1):
        yield from _mappings(f"{where}, row {number}", left, right)


def events(run: Path) -> Counter[tuple[int, str, bytes]]:
    """How often TensorBoard's files hold each (step, tag, value), wall-clock metrics left out."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: Counter[tuple[int, str, bytes]] = Counter()
    for path in sorted(run.glob("*tfevents*")):  # whatever TensorBoard takes for one of its files
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if not value.tag.startswith(WALL_CLOCK_METRICS):
                    found[event.step, value.tag, value.SerializeToString()] += 1
    return found


def _events(reference: Path, run: Path) -> Iterator[str]:
    expected, got = events(reference), events(run)
    for (step, tag, _), count in (expected - got).items():
        yield f"TensorBoard: {tag} at step {step} is missing, {count} times"
    for (step, tag, _), count in (got - expected).items():
        yield f"TensorBoard: {tag} at step {step} is wrong or there twice, {count} times"


# --- The rest --------------------------------------------------------------------------------------------------------


def _policies(run: Path) -> dict[str, bytes]:
    """The weights in each policy's zip; statistics are compared in the checkpoints."""
    found = {}
    for path in sorted((run / "policies").glob("*.zip")):
        with zipfile.ZipFile(path) as archive:
            found[path.name] = archive.read("policy.pth")
    return found


def _resumes(run: Path) -> Iterator[str]:
    """Every resume has to have been an exact one."""
    path = run / "resumes.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        if not json.loads(line)["exact"]:
            yield f"resumes.jsonl: {line}"
