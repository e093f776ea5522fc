"""The study behind a search: Optuna's, with trials that are handed out to workers and taken back from dead ones."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial, TrialState

from marl_sb3.config import TrainConfig, load_config
from marl_sb3.errors import ConfigError
from marl_sb3.metrics import flatten
from marl_sb3.tuning.search import Search
from marl_sb3.tuning.space import Space
from marl_sb3.tuning.storage import open_storage

_log = logging.getLogger(__name__)

# What a trial carries along, besides its parameters.
WORKER, RETRY_OF, FOLDER, SEED, ERROR = "worker", "retry_of", "folder", "seed", "error"

_DIRECTION = {"max": "maximize", "min": "minimize"}


class StudyOfTrials:
    """A study, as workers see it.

    Args:
        search: what is searched.
        folder: the study's.

    Raises:
        ConfigError: the storage cannot be opened.
    """

    def __init__(self, search: Search, folder: Path) -> None:
        self.search = search
        self.folder = folder
        self.space: Space = search.parsed_space()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna = optuna.create_study(
            storage=open_storage(folder, search.storage),
            study_name=search.name,
            direction=_DIRECTION[search.mode],  # type: ignore[arg-type]
            pruner=_pruner(search),
            sampler=_sampler(search, 0),
            load_if_exists=True,
        )
        self._lock = FileLock(folder / ".trials.lock")

    def trials(self) -> list[FrozenTrial]:
        """All trials so far, in the order of their numbers."""
        return self.optuna.get_trials(deepcopy=False)

    def begin(self) -> None:
        """Set up a new study, or take back what workers that are no more have left of an old one."""
        with self._lock:
            if self.search.sampler == "grid" and not self.trials():
                for params in self.space.grid():
                    self.optuna.enqueue_trial(params)
        self.take_back()

    def next_trial(self, worker: str) -> optuna.trial.Trial | None:
        """A trial for a worker; None if all have been handed out."""
        with self._lock:
            trials = self.trials()
            if not any(trial.state == TrialState.WAITING for trial in trials):
                handed_out = sum(RETRY_OF not in trial.user_attrs for trial in trials)
                if handed_out >= self.search.trials or self.search.sampler == "grid":
                    return None
            # What is drawn depends on the trials before it alone, not on who asks.
            self.optuna.sampler = _sampler(self.search, len(trials))
            trial = self.optuna.ask()
            trial.set_user_attr(WORKER, worker)
            return trial

    def take_back(self) -> list[int]:
        """Mark trials whose workers are no more as failed, and let each be tried once again.

        Returns:
            Their numbers.
        """
        with self._lock:
            dead = [
                trial
                for trial in self.trials()
                if trial.state == TrialState.RUNNING and not self._is_alive(trial.user_attrs.get(WORKER))
            ]
            for trial in dead:
                self.give_back(trial.number, trial.params, trial.user_attrs, "its process ended")
        return [trial.number for trial in dead]

    def give_back(self, number: int, params: dict[str, Any], attributes: dict[str, Any], why: str) -> None:
        """A trial that was broken off: failed, and waiting once more if it has not been tried twice."""
        trial_id = self.trials()[number]._trial_id
        self.optuna._storage.set_trial_user_attr(trial_id, ERROR, why)
        self.optuna.tell(number, state=TrialState.FAIL)
        if RETRY_OF not in attributes:
            self.optuna.enqueue_trial(params, user_attrs={RETRY_OF: number})

    # --- What came out -----------------------------------------------------------------------------------------------

    def completed(self) -> list[FrozenTrial]:
        """The trials that were trained to their end, best first."""
        done = [trial for trial in self.trials() if trial.state == TrialState.COMPLETE and trial.value is not None]
        sign = -1.0 if self.search.mode == "max" else 1.0
        return sorted(done, key=lambda trial: (sign * (trial.value or 0.0), trial.number))

    def best_config(self, metric: str | None = None, mode: str | None = None) -> TrainConfig:
        """The configuration of the best trial that was trained to its end.

        Args:
            metric: the flat name of a metric, compared in the last iteration of each; None: the objective.
            mode: `max` or `min`; None: as in the search.

        Raises:
            ConfigError: no trial has it.
        """
        mode = mode or self.search.mode
        if mode not in _DIRECTION:
            raise ConfigError(f"mode is {mode!r}; accepted: max or min", key="mode")
        values = [(self._value(trial, metric), trial) for trial in self.completed()]
        known = [(value, trial) for value, trial in values if value is not None]
        if not known:
            raise ConfigError(f"no trial has been trained to its end with a value of {metric or 'the objective'}")
        best = (max if mode == "max" else min)(known, key=lambda pair: pair[0])[1]
        return self.config_of(best)

    def config_of(self, trial: FrozenTrial) -> TrainConfig:
        """The resolved configuration of a trial that has been started."""
        return load_config(None, hparams=self.folder_of(trial) / "config.yaml", trusted_env=self.search.env)

    def folder_of(self, trial: FrozenTrial | optuna.trial.Trial) -> Path:
        """Its run folder."""
        return self.folder / "trials" / f"{trial.number:05d}"

    def checkpoints(self) -> dict[int, Path]:
        """The folder of each trial's checkpoints, by its number, for those that have any."""
        folders = {trial.number: self.folder_of(trial) / "checkpoints" for trial in self.trials()}
        return {number: folder for number, folder in folders.items() if folder.is_dir()}

    def _value(self, trial: FrozenTrial, metric: str | None) -> float | None:
        if metric is None:
            return trial.value
        *_, last = (self.folder_of(trial) / "result.jsonl").read_text(encoding="utf-8").splitlines()
        value = flatten(json.loads(last)).get(metric)
        return None if value is None else float(value)

    # --- Workers -----------------------------------------------------------------------------------------------------

    def _worker_lock(self, worker: str) -> FileLock:
        folder = self.folder / "workers"
        folder.mkdir(exist_ok=True)
        return FileLock(folder / f"{worker}.lock")

    @contextmanager
    def working(self, worker: str) -> Iterator[None]:
        """While it lasts, the worker counts as alive; the system ends it with the process."""
        try:
            with self._worker_lock(worker).acquire(timeout=0):
                yield
        except Timeout:
            raise ConfigError(f"{self.folder}: there is a worker {worker!r} already", key="study") from None

    def _is_alive(self, worker: str | None) -> bool:
        if worker is None:
            return False
        try:
            with self._worker_lock(worker).acquire(timeout=0):
                return False
        except Timeout:
            return True


def _sampler(search: Search, number: int) -> optuna.samplers.BaseSampler:
    """The sampler for a trial: seeded by the search and the trial's number."""
    seed = int(np.random.SeedSequence(search.seed, spawn_key=(number, 1)).generate_state(1)[0])
    if search.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(1, search.trials // 3)))
    if search.sampler == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def _pruner(search: Search) -> optuna.pruners.BasePruner:
    if search.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2, n_min_trials=2)
    if search.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3)
    return optuna.pruners.NopPruner()
