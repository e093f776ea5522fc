"""Train the best trials again with fresh seeds, next to the preset: was the winner good, or lucky?"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marl_sb3.errors import MarlSb3Error
from marl_sb3.tuning.search import Search
from marl_sb3.tuning.study import StudyOfTrials

PRESET = "preset"
_DONE = "objective.json"  # in a run folder: what came out


@dataclass(frozen=True)
class Candidate:
    """Settings that are trained with several seeds.

    Attributes:
        name: `preset`, or `trial 7`.
        settings: as after `--set`; none for the preset.
        values: the objective, by seed.
    """

    name: str
    settings: Mapping[str, Any]
    values: tuple[float, ...] = ()


def confirm(
    study: StudyOfTrials, best: int, seeds: int, workers: int = 1, watch: Callable[[int, int], None] | None = None
) -> list[Candidate]:
    """Train the preset and the best trials with the same fresh seeds; what was trained before is not trained again.

    Args:
        study: finished.
        best: how many of its trials.
        seeds: how many each.
        workers: processes.
        watch: told how many of how many runs are done.

    Returns:
        The preset, then the trials, best first.
    """
    candidates = [Candidate(PRESET, {})]
    candidates += [
        Candidate(f"trial {trial.number}", study.space.settings(trial.params)) for trial in study.completed()[:best]
    ]
    jobs = [(candidate, index) for candidate in candidates for index in range(seeds)]
    values: dict[tuple[str, int], float] = {}
    context = multiprocessing.get_context("spawn")
    share = str(max(1, (os.cpu_count() or 1) // workers))
    with ProcessPoolExecutor(workers, context, initializer=_share_cores, initargs=(share,)) as pool:
        futures = {
            pool.submit(
                _run, study.search, candidate.settings, _seed(study.search, index), _folder(study, candidate, index)
            ): (
                candidate.name,
                index,
            )
            for candidate, index in jobs
        }
        for future in as_completed(futures):
            values[futures[future]] = future.result()
            if watch is not None:
                watch(len(values), len(jobs))
    return [Candidate(c.name, c.settings, tuple(values[c.name, index] for index in range(seeds))) for c in candidates]


def _share_cores(share: str) -> None:
    os.environ["OMP_NUM_THREADS"] = share


def _seed(search: Search, index: int) -> int:
    """Seeds that no trial has had, in [0, 2**31)."""
    return int(np.random.SeedSequence(search.seed, spawn_key=(index, 2)).generate_state(1)[0]) >> 1


def _folder(study: StudyOfTrials, candidate: Candidate, index: int) -> Path:
    return study.folder / "confirm" / candidate.name.replace(" ", "-") / f"seed-{index}"


def _run(search: Search, settings: Mapping[str, Any], seed: int, folder: Path) -> float:
    """Train one candidate with one seed; returns the objective."""
    import shutil

    from marl_sb3.experiment import execute, prepare

    if (folder / _DONE).is_file():
        return float(json.loads((folder / _DONE).read_text(encoding="utf-8"))["objective"])
    shutil.rmtree(folder, ignore_errors=True)  # of a search that was broken off
    run = execute(prepare(search.trial_config(settings, seed), folder))
    if run.interrupted:
        raise KeyboardInterrupt
    value = search.parsed_objective().final(_evaluations(search, folder / "result.jsonl"))
    (folder / f"{_DONE}.new").write_text(json.dumps({"objective": value, "seed": seed}), encoding="utf-8")
    os.replace(folder / f"{_DONE}.new", folder / _DONE)
    return value


def _evaluations(search: Search, log: Path) -> Sequence[float]:
    objective = search.parsed_objective()
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    values = [objective.value(row) for row in rows if "evaluation" in row]
    found = [value for value in values if value is not None]
    if not found:
        raise MarlSb3Error(f"{log} has no evaluation")
    return found
