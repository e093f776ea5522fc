"""Train the best trials again with fresh seeds, next to the preset: was the winner good, or lucky?"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial

from marl_sb3.envs.registry import importable_id
from marl_sb3.experiment import Run, execute, prepare
from marl_sb3.tuning.run_search import the_only_search
from marl_sb3.tuning.search import Search, require_whole
from marl_sb3.tuning.study import StudyOfTrials
from marl_sb3.tuning.trial import note_failure
from marl_sb3.tuning.trial_rows import write_whole
from marl_sb3.tuning.workers import Workers

PRESET = "preset"
_FOLDER = "confirm"  # of the study
_DONE = "objective.json"  # in a run folder: what came out


@dataclass(frozen=True)
class Candidate:
    """Settings that have been trained with several fresh seeds.

    Attributes:
        trial: the number of the trial that had them; None: the preset.
        values: the objective with each seed that was trained to its end.
        failed: how many trainings failed.
    """

    trial: int | None
    values: tuple[float, ...]
    failed: int = 0

    @property
    def name(self) -> str:
        """`preset`, or `trial 7`."""
        return PRESET if self.trial is None else f"trial {self.trial}"


@dataclass(frozen=True)
class _Training:
    """One candidate with one fresh seed."""

    trial: int | None
    index: int
    folder: Path

    @property
    def outcome(self) -> Path:
        return self.folder / _DONE


def confirm(
    study: StudyOfTrials,
    best: int = 1,
    seeds: int = 10,
    workers: int = 1,
    watch: Callable[[int, int], None] | None = None,
) -> list[Candidate]:
    """Train the preset and the best trials with the same fresh seeds; what was trained before is not trained again.

    Args:
        study: finished.
        best: how many of its trials.
        seeds: how many each.
        workers: processes.
        watch: told, twice a second, how many of how many trainings are done.

    Returns:
        As `confirmed`.

    Raises:
        ConfigError: a number is wrong, the study is being run, or the workers cannot import the env.
        SearchError: worker processes cannot be started.
        KeyboardInterrupt: passed on, when they have ended.
    """
    require_whole("confirm_best", best, 1)
    require_whole("confirm_seeds", seeds, 1)
    require_whole("workers", workers, 1)
    trials = [trial.number for trial in study.completed()[:best]]
    if not trials:
        return []
    trainings = _trainings(study, trials, seeds)

    def done() -> int:
        return sum(training.outcome.is_file() for training in trainings)

    def look() -> None:
        if watch is not None:
            watch(done(), len(trainings))

    with the_only_search(study.folder):
        if workers == 1 and importable_id(study.search.env, study.factory) is None:
            if not work_on_confirming(study, trials, seeds, look):
                raise KeyboardInterrupt
        else:
            Workers(study, workers, ["confirm", *map(str, [seeds, *trials])], done).run(look)
        look()
    return confirmed(study)


def work_on_confirming(
    study: StudyOfTrials, trials: Sequence[int], seeds: int, look: Callable[[], None] = lambda: None
) -> bool:
    """Do the trainings that are neither done nor being done by others; returns False if one was interrupted."""
    for training in _trainings(study, trials, seeds):
        training.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(training.folder.with_name(f"{training.folder.name}.lock")).acquire(timeout=0):
                if not training.outcome.is_file() and not _train(study, training):
                    return False
        except Timeout:
            continue  # another worker is at it
        look()
    return True


def _trainings(study: StudyOfTrials, trials: Sequence[int], seeds: int) -> list[_Training]:
    """Of all candidates, the preset first; seed by seed, so that few of them compare too."""
    return [
        _Training(trial, index, _folder_of(study, trial) / f"seed-{index:02d}")
        for index in range(seeds)
        for trial in (None, *trials)
    ]


def _folder_of(study: StudyOfTrials, trial: int | None) -> Path:
    return study.folder / _FOLDER / (PRESET if trial is None else f"trial-{trial}")


def _seed(search: Search, index: int) -> int:
    """Seeds that no trial has had, in [0, 2**31)."""
    return int(np.random.SeedSequence(search.seed, spawn_key=(index, 2)).generate_state(1)[0]) >> 1


def _train(study: StudyOfTrials, training: _Training) -> bool:
    """Train a candidate with a seed and write down what came out; returns False if it was interrupted."""
    settings = {} if training.trial is None else study.space.settings(study.trials[training.trial].params)
    config = study.search.trial_config(settings, _seed(study.search, training.index))
    shutil.rmtree(training.folder, ignore_errors=True)  # of a search that was broken off
    outcome: dict[str, Any] = {"seed": config.seed}
    try:
        run = execute(prepare(config, training.folder, study.factory))
        if run.interrupted:
            return False
        outcome["objective"] = _objective(study.search, run)
    except Exception as error:  # a result too: these settings fail now and then
        note_failure(training.folder, error)
        outcome["error"] = f"{type(error).__name__}: {error}"
    write_whole(training.outcome, json.dumps(outcome))
    return True


def _objective(search: Search, run: Run) -> float:
    objective = search.parsed_objective()
    rows = map(json.loads, (run.folder / "result.jsonl").read_text(encoding="utf-8").splitlines())
    values = [objective.value(row) for row in rows if "evaluation" in row]
    return objective.final([value for value in values if value is not None])


# --- What came out ---------------------------------------------------------------------------------------------------


def confirmed(study: StudyOfTrials) -> list[Candidate]:
    """What has been trained with fresh seeds so far: the preset, then trials, best first; empty if nothing has."""
    by_name: dict[str, list[Mapping[str, Any]]] = {PRESET: []}
    for name, _, outcome in outcomes(study):
        by_name.setdefault(name, []).append(outcome)
    candidates = [_candidate(name, of_it) for name, of_it in by_name.items()]
    preset, *trials = (candidate for candidate in candidates if candidate.trial is None or candidate.values)
    sign = -1.0 if study.search.mode == "max" else 1.0
    ranked = sorted(trials, key=lambda candidate: sign * math.fsum(candidate.values) / len(candidate.values))
    return [preset, *ranked] if preset.values and ranked else []


def _candidate(name: str, of_it: Sequence[Mapping[str, Any]]) -> Candidate:
    values = tuple(float(outcome["objective"]) for outcome in of_it if "objective" in outcome)
    return Candidate(None if name == PRESET else int(name.split()[1]), values, len(of_it) - len(values))


def outcomes(study: StudyOfTrials) -> list[tuple[str, Path, Mapping[str, Any]]]:
    """Of each training that is done: the candidate's name, the run folder within the study's, and what came out."""
    files = sorted((study.folder / _FOLDER).glob(f"*/*/{_DONE}"), key=lambda path: (path.parts[-3], path.parts[-2]))
    return [
        (
            path.parts[-3].replace("-", " "),
            path.parent.relative_to(study.folder),
            json.loads(path.read_text(encoding="utf-8")),
        )
        for path in files
    ]


def winner(study: StudyOfTrials) -> tuple[FrozenTrial, Candidate | None] | None:
    """The trial whose settings are the ones to take, and what fresh seeds said of it; None if none was trained.

    It is the best of those that were trained again, if the best trial of the search is among these; else the latter.
    """
    best = next(iter(study.completed()), None)
    if best is None:
        return None
    candidates = confirmed(study)[1:]
    if all(candidate.trial != best.number for candidate in candidates):
        return best, None
    number = candidates[0].trial
    return next(trial for trial in study.completed() if trial.number == number), candidates[0]
