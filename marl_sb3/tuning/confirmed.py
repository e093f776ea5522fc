"""Results of trainings with fresh seeds: how the best trials compare with the preset, and which trial wins."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from marl_sb3.storage.atomic import write_whole
from marl_sb3.storage.regular import read_regular
from marl_sb3.tuning.study import TuneStudy

PRESET = "preset"
_FOLDER = "confirm"  # in the study's folder
_FILE = "objective.json"  # in a run folder


@dataclass(frozen=True)
class Candidate:
    """Settings that were trained with several fresh seeds.

    Attributes:
        trial: the number of the trial with these settings; None: the preset.
        values: the objective for each seed whose training finished.
    """

    trial: int | None
    values: tuple[float, ...]
    failed: int = 0

    @property
    def name(self) -> str:
        """`preset`, or `trial 7`."""
        return PRESET if self.trial is None else f"trial {self.trial}"


def candidate_folder(study: TuneStudy, trial: int | None) -> Path:
    """The folder for trainings with the settings of a trial; None: of the preset."""
    return study.folder / _FOLDER / (PRESET if trial is None else f"trial-{trial}")


def write_outcome(folder: Path, outcome: Mapping[str, Any]) -> None:
    """Store the outcome of a training in its run folder: its `seed`, and its `objective` or `error`."""
    write_whole(folder / _FILE, json.dumps(outcome))


def read_outcome(folder: Path) -> Mapping[str, Any] | None:
    """The outcome of the training in a run folder; None if it has not finished or the file is damaged."""
    try:
        outcome = json.loads(read_regular(folder / _FILE))
    except (OSError, ValueError):
        return None
    is_valid = isinstance(outcome, dict) and isinstance(
        outcome.get("objective", outcome.get("error")), (int, float, str)
    )
    return outcome if is_valid and isinstance(outcome.get("seed"), int) else None


def outcomes(study: TuneStudy) -> list[tuple[str, Path, Mapping[str, Any]]]:
    """For each finished training: the candidate's name, the run folder relative to the study's, and the outcome."""
    files = sorted((study.folder / _FOLDER).glob(f"*/*/{_FILE}"), key=lambda path: (path.parts[-3], path.parts[-2]))
    found = [(path.parent, read_outcome(path.parent)) for path in files]
    return [
        (folder.parts[-2].replace("-", " "), folder.relative_to(study.folder), outcome)
        for folder, outcome in found
        if outcome is not None
    ]


def confirmed(study: TuneStudy) -> list[Candidate]:
    """All candidates trained so far: the preset, then the trials, best first; empty if there is nothing to compare.

    Trials with fewer trainings come after the others, and so do trials with more failures.
    """
    by_name: dict[str, list[Mapping[str, Any]]] = {PRESET: []}
    for name, _, outcome in outcomes(study):
        by_name.setdefault(name, []).append(outcome)
    candidates = [_candidate(name, found) for name, found in by_name.items()]
    preset, *trials = (candidate for candidate in candidates if candidate.trial is None or candidate.values)
    sign = -1.0 if study.search.mode == "max" else 1.0

    def rank(candidate: Candidate) -> tuple[float, ...]:
        n_values = len(candidate.values)
        return -(n_values + candidate.failed), candidate.failed, sign * math.fsum(candidate.values) / n_values

    ranked = sorted(trials, key=rank)
    return [preset, *ranked] if preset.values and ranked else []


def _candidate(name: str, found: Sequence[Mapping[str, Any]]) -> Candidate:
    values = tuple(float(outcome["objective"]) for outcome in found if "objective" in outcome)
    return Candidate(None if name == PRESET else int(name.split()[1]), values, len(found) - len(values))


def winner(study: TuneStudy) -> tuple[FrozenTrial, Candidate | None] | None:
    """The trial whose settings should be used, and its results with fresh seeds; None if no trial is complete.

    If the best trial was trained again, the winner is the best of all trials that were trained again. Otherwise it
    is the best trial of the search.
    """
    completed = study.completed()
    if not completed:
        return None
    candidates = confirmed(study)[1:]
    if all(candidate.trial != completed[0].number for candidate in candidates):
        return completed[0], None
    return next(trial for trial in completed if trial.number == candidates[0].trial), candidates[0]
