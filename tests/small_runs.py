"""Small runs for tests, whole and broken off, and the comparison of two of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import marl_sb3
from marl_sb3 import MultiAgentCallback
from marl_sb3.core.metrics.names import flatten
from marl_sb3.extensions.store.checkpoint_folder import CheckpointFolder

SMALL = {"n_steps": 20, "batch_size": 20, "n_epochs": 1, "env.max_timesteps": 15, "policy_kwargs.net_arch": [8]}
# What clocks say, and how often callbacks of a search, a benchmark or a phase were called that have nothing to keep.
NOT_COMPARED = ("/time_total_s", "/duration_s", "/running_s")
NOT_COMPARED += ("/StopOnMetric-0/n_calls", "/PruningCallback-0/n_calls", "/_ProcessorTime-0/n_calls")
CLOCKS = ("time", "throughput", "perf", "env_runners/episode_duration", "evaluation/env_runners/episode_duration")


def start(folder: str, iterations: int = 8, **options: Any) -> marl_sb3.Run:
    settings = {**SMALL, "checkpoint_every": 2, **options.pop("settings", {})}
    if options.get("env", "arena") != "arena":
        del settings["env.max_timesteps"]
    arguments = {"env": "arena", "n_envs": 2, "seed": 7, "timesteps": 40 * iterations, **options}
    return marl_sb3.train(settings=settings, run_dir=folder, **arguments)


class Fail(MultiAgentCallback):
    """Ends the training as a crash would."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.step:
            raise RuntimeError("crash")
        return True


def broken(folder: str, step: int = 210, **options: Any) -> None:
    with pytest.raises(RuntimeError, match="crash"):
        start(folder, callback=[Fail(step)], **options)


def rows(folder: str) -> list[dict[str, Any]]:
    lines = [flatten(json.loads(line)) for line in (Path(folder) / "result.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(CLOCKS)} for line in lines]


def table(folder: str) -> list[dict[str, str]]:
    with (Path(folder) / "progress.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in csv.DictReader(file)]


def scalars(folder: str) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(folder)
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith(CLOCKS)]
    # Sorted: files of one process and second are read in the order of their names.
    return {tag: sorted((event.step, event.value) for event in events.Scalars(tag)) for tag in tags}


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a checkpoint's state with their paths, arrays as bytes."""
    if isinstance(tree, dict | list):
        for name, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(part, f"{path}/{name}")
    elif not path.endswith(NOT_COMPARED):
        yield path, (tree.dtype, tree.shape, tree.tobytes()) if isinstance(tree, np.ndarray) else tree


def assert_same_runs(one: str, other: str) -> None:
    assert rows(one) == rows(other)
    assert table(one) == table(other)
    assert scalars(one) == scalars(other)
    a, b = (CheckpointFolder(Path(folder) / "checkpoints").load("latest") for folder in (one, other))
    assert a.name == b.name
    differing = sorted({*leaves(a.state)} ^ {*leaves(b.state)}, key=str)
    assert not differing, differing[:6]
    for file in a.tensors:
        for name, array in a.tensors[file].items():
            np.testing.assert_array_equal(array, b.tensors[file][name])
