"""Train the best trials again with fresh seeds, next to the preset: was the winner good, or lucky?"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout
from optuna.trial import FrozenTrial

from marl_sb3.errors import is_disk_full
from marl_sb3.runs.execute import execute
from marl_sb3.runs.prepare import prepare
from marl_sb3.storage.atomic import write_whole
from marl_sb3.tuning.jobs import Job
from marl_sb3.tuning.run_jobs import run_jobs
from marl_sb3.tuning.search import require_integer
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial import note_failure, objective_of

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

    def outcome(self) -> Mapping[str, Any] | None:
        """What came out; None if it is not done."""
        return _read_outcome(self.folder / _DONE)

    def lock(self) -> FileLock:
        """Held by the worker that is at it."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder.with_name(f"{self.folder.name}.lock"))

    def is_free(self) -> bool:
        """Whether no worker is at it."""
        try:
            with self.lock().acquire(timeout=0):
                return True
        except Timeout:
            return False


def _read_outcome(path: Path) -> Mapping[str, Any] | None:
    try:
        outcome = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_one = isinstance(outcome, dict) and isinstance(outcome.get("objective", outcome.get("error")), (int, float, str))
    return outcome if is_one and isinstance(outcome.get("seed"), int) else None


def confirm(
    study: TuneStudy,
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
    require_integer("confirm_best", best, 1)
    require_integer("confirm_seeds", seeds, 1)
    require_integer("workers", workers, 1)
    trials = [trial.number for trial in study.completed()[:best]]
    if not trials:
        return []
    queue = ConfirmationQueue(study, trials, seeds)

    def look() -> None:
        if watch is not None:
            watch(queue.n_done(), len(queue.trainings))

    run_jobs(study, queue, workers, look)
    return confirmed(study)


class ConfirmationQueue:
    """Trainings of the preset and of trials with fresh seeds, as a `JobQueue`.

    Args:
        study: what they are of.
        trials: the numbers of the trials.
        seeds: how many each.

    Attributes:
        trainings: all of them.
    """

    def __init__(self, study: TuneStudy, trials: Sequence[int], seeds: int) -> None:
        self.arguments = ("confirm", *map(str, [seeds, *trials]))
        self.trainings = _trainings(study, trials, seeds)
        self._study = study

    def claim(self, worker: str) -> Job | None:
        """See `JobQueue.claim`: whoever holds its lock has claimed a training."""
        for training in self._not_done():
            lock = training.lock()
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue  # another worker is at it
            if training.outcome() is None:
                return _Confirmation(self._study, training, lock)
            lock.release()
        return None

    def _not_done(self) -> list[_Training]:
        return [training for training in self.trainings if training.outcome() is None]

    def n_done(self) -> int:
        """See `JobQueue.n_done`."""
        return len(self.trainings) - len(self._not_done())

    def in_flight(self) -> list[str]:
        """See `JobQueue.in_flight`."""
        return [str(training.folder) for training in self._not_done() if not training.is_free()]

    def requeue_dead(self) -> None:
        """Nothing is to be done: the system has released the locks of a worker that died."""

    def is_waiting(self) -> bool:
        """See `JobQueue.is_waiting`."""
        return any(training.is_free() for training in self._not_done())


@dataclass(frozen=True)
class _Confirmation:
    """A training that this process has claimed: it holds the lock."""

    study: TuneStudy
    training: _Training
    lock: BaseFileLock

    def run(self) -> bool:
        try:
            return _train(self.study, self.training)
        finally:
            self.lock.release()


def _trainings(study: TuneStudy, trials: Sequence[int], seeds: int) -> list[_Training]:
    """Of all candidates, the preset first; seed by seed, so that few of them compare too."""
    return [
        _Training(trial, index, _folder_of(study, trial) / f"seed-{index:02d}")
        for index in range(seeds)
        for trial in (None, *trials)
    ]


def _folder_of(study: TuneStudy, trial: int | None) -> Path:
    return study.folder / _FOLDER / (PRESET if trial is None else f"trial-{trial}")


def _train(study: TuneStudy, training: _Training) -> bool:
    """Train a candidate with a seed and write down what came out; returns False if it was interrupted."""
    settings = {} if training.trial is None else study.space.settings(study.trials[training.trial].params)
    config = study.search.trial_config(settings, study.search.fresh_seed(training.index))
    # Nor are the episodes those by which the winner was chosen.
    config = config.changed({"evaluation.seed": study.search.fresh_evaluation_seed(training.index)})
    shutil.rmtree(training.folder, ignore_errors=True)  # of a search that was broken off
    outcome: dict[str, Any] = {"seed": config.seed}
    try:
        run = execute(prepare(config, training.folder, study.factory))
        if run.interrupted:
            return False
        outcome["objective"] = objective_of(study.search, run)
    except (Exception, SystemExit) as error:  # a result too: these settings fail now and then
        if is_disk_full(error):
            raise
        outcome["error"] = note_failure(training.folder, error)
    write_whole(training.folder / _DONE, json.dumps(outcome))
    return True


# --- What came out ---------------------------------------------------------------------------------------------------


def confirmed(study: TuneStudy) -> list[Candidate]:
    """What has been trained with fresh seeds so far: the preset, then trials, best first; empty if nothing has.

    Trials that have been trained less often than others, or have failed more often, come after those.
    """
    by_name: dict[str, list[Mapping[str, Any]]] = {PRESET: []}
    for name, _, outcome in outcomes(study):
        by_name.setdefault(name, []).append(outcome)
    candidates = [_candidate(name, of_it) for name, of_it in by_name.items()]
    preset, *trials = (candidate for candidate in candidates if candidate.trial is None or candidate.values)
    sign = -1.0 if study.search.mode == "max" else 1.0

    def rank(candidate: Candidate) -> tuple[float, ...]:
        n_values = len(candidate.values)
        return -(n_values + candidate.failed), candidate.failed, sign * math.fsum(candidate.values) / n_values

    ranked = sorted(trials, key=rank)
    return [preset, *ranked] if preset.values and ranked else []


def _candidate(name: str, of_it: Sequence[Mapping[str, Any]]) -> Candidate:
    values = tuple(float(outcome["objective"]) for outcome in of_it if "objective" in outcome)
    return Candidate(None if name == PRESET else int(name.split()[1]), values, len(of_it) - len(values))


def outcomes(study: TuneStudy) -> list[tuple[str, Path, Mapping[str, Any]]]:
    """Of each training that is done: the candidate's name, the run folder within the study's, and what came out."""
    files = sorted((study.folder / _FOLDER).glob(f"*/*/{_DONE}"), key=lambda path: (path.parts[-3], path.parts[-2]))
    found = [(path, _read_outcome(path)) for path in files]
    return [
        (path.parts[-3].replace("-", " "), path.parent.relative_to(study.folder), outcome)
        for path, outcome in found
        if outcome is not None
    ]


def winner(study: TuneStudy) -> tuple[FrozenTrial, Candidate | None] | None:
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
