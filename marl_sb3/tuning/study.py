"""The study of a search: Optuna's study, with trials that workers claim and that are requeued if a worker dies."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial, TrialState

from marl_sb3.config import TrainConfig
from marl_sb3.display.text import short_path
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.errors import ConfigError
from marl_sb3.metrics import flatten
from marl_sb3.metrics.sample_stats import table
from marl_sb3.runs.build import resolved
from marl_sb3.runs.folder import RunFolder, read_results
from marl_sb3.tuning import trial as key
from marl_sb3.tuning.search import Search
from marl_sb3.tuning.storage import damage_named, open_storage
from marl_sb3.tuning.trial import header, row, run_folder

_SEARCH = "search"  # the study attribute that holds the search, in the study's storage
_DIRECTION = {"max": "maximize", "min": "minimize"}


class TuneStudy:
    """The trials of a search and their results; `.optuna` is Optuna's study.

    Args:
        search: the settings of the search.
        folder: the study's folder.
        factory: makes the env, if the env id in the search does not.

    Attributes:
        folder: absolute, because an env may change the working folder of the process.
        continued: whether the study existed before it was opened.

    Raises:
        ConfigError: the storage cannot be opened or is damaged.
    """

    def __init__(self, search: Search, folder: Path, factory: EnvFactory | None = None) -> None:
        self.search = search
        self.folder = folder = folder.absolute()
        self.factory = factory
        self.continued = False
        self.space = search.space
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with damage_named(folder, search.storage):
            self._storage = open_storage(folder, search.storage)
            self.optuna = optuna.create_study(
                storage=self._storage,
                study_name=search.name,
                direction=_DIRECTION[search.mode],  # type: ignore[arg-type]
                pruner=pruner(search),
                sampler=sampler(search, 0),
                load_if_exists=True,
            )
        self._lock = FileLock(folder / ".trials.lock")

    def reopened(self) -> TuneStudy:
        """Return another object of the same study, for another thread."""
        return TuneStudy(self.search, self.folder, self.factory)

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials so far, ordered by number."""
        return self.optuna.get_trials(deepcopy=False)

    def begin(self) -> None:
        """Set up a new study, or requeue the trials of dead workers in an existing one.

        Raises:
            ConfigError: the storage holds a different search of this name, or lacks the trials in the folder.
        """
        with self._lock:
            self._require_same_search()
            if self.search.sampler == "grid":
                # Those that are missing: a kill may leave the grid incomplete.
                for params in itertools.islice(self.space.grid(), _count(self.trials), None):
                    self.optuna.enqueue_trial(params)
            for trial in self._running(alive=False):
                # Worker processes, which have logs, ended with their search. Any other one was the search itself.
                was_a_process = (self.folder / "workers" / f"{trial.user_attrs[key.WORKER]}.log").exists()
                self.requeue(trial.number, key.INTERRUPTED if was_a_process else key.KILLED)

    def _require_same_search(self) -> None:
        fields = {name: value for name, value in self.search.to_plain().items() if name not in ("trials", "storage")}
        stored = self.optuna.user_attrs.get(_SEARCH)
        if stored is None and not self.trials:
            if (self.folder / "trials").exists():
                words = f"{self.folder} has trials that its storage does not know; accepted: another --study name"
                raise ConfigError(words, key="storage")
            self.optuna.set_user_attr(_SEARCH, fields)
            return
        known = stored if isinstance(stored, dict) else {}
        if differing := ", ".join(name for name in fields if known.get(name, fields) != fields[name]):
            words = f"the storage holds a study {self.search.name!r} with another {differing}"
            raise ConfigError(f"{words}; accepted: another --study name", key="study")

    def next_trial(self, worker: str) -> optuna.trial.Trial | None:
        """Claim a trial for a worker; None if there are none left."""
        with self._lock:
            while (waiting := self._waiting()) is None:
                if self.search.sampler == "grid" or _count(self.trials) >= self.search.trials:
                    return None
                self.optuna.enqueue_trial({})
            index = _index_of(waiting, self.trials)
            # Store the worker's name before the trial runs: after a kill, every running trial has one.
            for name, value in ((key.WORKER, worker), (key.INDEX, index)):
                self._storage.set_trial_user_attr(waiting._trial_id, name, value)
            # A new sampler for each trial: its draws must not depend on the worker or on earlier kills.
            self.optuna.sampler = sampler(self.search, index)
            trial = self.optuna.ask()
            # Another machine on the same database may have claimed the intended trial; this is then another one.
            trials = self.trials
            trial.set_user_attr(key.WORKER, worker)
            trial.set_user_attr(key.INDEX, _index_of(trials[trial.number], trials))
            return trial

    def _waiting(self) -> FrozenTrial | None:
        return next((trial for trial in self.trials if trial.state == TrialState.WAITING), None)

    def is_waiting(self) -> bool:
        """Whether a trial waits for a worker."""
        return self._waiting() is not None

    def in_flight(self) -> list[str]:
        """The living workers of this folder that run a trial."""
        return [trial.user_attrs[key.WORKER] for trial in self._running(alive=True)]

    def requeue_dead(self, why: str = key.KILLED) -> int:
        """Mark the trials of dead workers as failed, and requeue them; see `requeue`.

        Args:
            why: `INTERRUPTED` if the search ended the workers itself, which is not the trial's fault.

        Returns:
            The number of these trials.
        """
        with self._lock:
            dead = self._running(alive=False)
            for trial in dead:
                self.requeue(trial.number, why)
        return len(dead)

    def _running(self, *, alive: bool) -> list[FrozenTrial]:
        """The running trials of living or dead workers of this folder; a database may hold those of other machines."""
        workers = {path.stem for path in (self.folder / "workers").glob("*")}  # names of locks and logs
        running = [trial for trial in self.trials if trial.state == TrialState.RUNNING]
        ours = [trial for trial in running if trial.user_attrs.get(key.WORKER) in workers]
        return [trial for trial in ours if self._is_alive(trial.user_attrs[key.WORKER]) == alive]

    def requeue(self, number: int, why: str) -> None:
        """Mark an unfinished trial as failed and enqueue it again, unless its process has died twice."""
        trial = self.trials[number]
        deaths = trial.user_attrs.get(key.DEATHS, 0) + (why == key.KILLED)
        self._storage.set_trial_user_attr(trial._trial_id, key.ERROR, why)
        # Enqueue first: after a kill in between, the trial is still running and is requeued again, but only once.
        if deaths <= 1 and all(other.user_attrs.get(key.RETRY_OF) != number for other in self.trials):
            # A trial stores its seed once all its parameters are drawn. If it was killed before, only those that were
            # set for it (of a grid, or by the user) are repeated: the sampler draws the others again, in the same order
            # from the same seed.
            params = trial.params if key.SEED in trial.user_attrs else trial.system_attrs.get("fixed_params", {})
            self.optuna.enqueue_trial(dict(params), user_attrs={key.RETRY_OF: number, key.DEATHS: deaths})
        self.optuna.tell(number, state=TrialState.FAIL)

    @contextmanager
    def working(self, worker: str) -> Iterator[None]:
        """Mark the worker as alive by a lock, which the system releases if the process dies."""
        try:
            with self._worker_lock(worker).acquire(timeout=0):
                yield
        except Timeout:
            raise ConfigError(f"{self.folder}: there is a worker {worker!r} already", key="study") from None

    def _is_alive(self, worker: str) -> bool:
        try:
            with self._worker_lock(worker).acquire(timeout=0):
                return False
        except Timeout:
            return True

    def _worker_lock(self, worker: str) -> FileLock:
        folder = self.folder / "workers"
        folder.mkdir(exist_ok=True)
        return FileLock(folder / f"{worker}.lock")

    # --- Results -----------------------------------------------------------------------------------------------------

    def n_done(self) -> int:
        """The number of finished trials; a trial and its retries count as one."""
        trials = self.trials
        n_retries = len(trials) - _count(trials)
        return max(0, sum(trial.state.is_finished() for trial in trials) - n_retries)

    def completed(self) -> list[FrozenTrial]:
        """The complete trials, best first."""
        return best_first(self.trials, self.search.mode)

    @property
    def best_trial(self) -> FrozenTrial:
        """The best complete trial.

        Raises:
            ConfigError: no trial is complete.
        """
        best = next(iter(self.completed()), None)
        if best is None:
            raise ConfigError("no trial has been trained to its end", key="study")
        return best

    def best_config(self, metric: str | None = None, mode: str | None = None) -> TrainConfig:
        """The configuration of the best complete trial.

        Args:
            metric: the flat name of a metric, whose values in the last iterations are compared; None: the objective.
            mode: `max` or `min`; None: as in the search.

        Raises:
            ConfigError: no complete trial has a value of the metric.
        """
        mode = mode or self.search.mode
        if mode not in _DIRECTION:
            raise ConfigError(f"mode is {mode!r}; accepted: max or min", key="mode")

        def value(trial: FrozenTrial) -> float | None:
            if metric is None:
                return trial.value
            results = read_results(self.folder_of(trial))  # empty if it was trained on another machine
            return flatten(results[-1]).get(metric) if results else None

        known = [(found, trial) for trial in self.completed() if (found := value(trial)) is not None]
        if not known:
            raise ConfigError(f"no trial has been trained to its end with a value of {metric or 'the objective'}")
        return self.config_of((max if mode == "max" else min)(known, key=lambda pair: pair[0])[1])

    def dataframe(self) -> Any:
        """All trials with the columns of `trials.csv`; parameters that are lists are JSON.

        Returns:
            A `pandas.DataFrame` if pandas is installed; otherwise a list of dictionaries.
        """
        columns = header(self.space)
        values = [row(self.space, trial, lambda value: value) for trial in self.trials]
        return table([dict(zip(columns, each, strict=True)) for each in values], columns)

    def __repr__(self) -> str:
        search, best = self.search, next(iter(self.completed()), None)
        parts = [f"{search.env}, {self.n_done()} of {search.trials} trials"]
        if best is not None:
            parts.append(f"best {best.value:,.2f} (trial {best.number})")
        return f"<Study {short_path(self.folder)}: {', '.join(parts)}>"

    def config_of(self, trial: FrozenTrial) -> TrainConfig:
        """The resolved configuration of a trial that was started."""
        files = RunFolder(self.folder_of(trial))
        if files.config_file.is_file():
            return files.read_config(self.search.env)
        # It was trained on another machine.
        return resolved(self.search.trial_config(self.space.settings(trial.params), trial.user_attrs[key.SEED]))

    def folder_of(self, trial: FrozenTrial | optuna.trial.Trial) -> Path:
        """The run folder of a trial."""
        return self.folder / run_folder(trial.number)

    def checkpoints(self) -> dict[int, Path]:
        """The folders of checkpoints by trial number; trials without checkpoints are left out."""
        folders = {trial.number: self.folder_of(trial) / "checkpoints" for trial in self.trials}
        return {number: folder for number, folder in folders.items() if folder.is_dir()}


def _count(trials: Iterable[FrozenTrial]) -> int:
    """The number of trials without retries."""
    return sum(key.RETRY_OF not in trial.user_attrs for trial in trials)


def _index_of(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> int:
    """The index of a trial among all trials without retries; a retry has the index of the first attempt."""
    while key.RETRY_OF in trial.user_attrs:
        trial = trials[trial.user_attrs[key.RETRY_OF]]
    return _count(trials[: trial.number])


def best_first(trials: Iterable[FrozenTrial], mode: str) -> list[FrozenTrial]:
    """The complete trials, best first; of equal values the earlier trial comes first."""
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.value is not None]
    sign = -1.0 if mode == "max" else 1.0
    return sorted(complete, key=lambda trial: (sign * (trial.value or 0.0), trial.number))


def sampler(search: Search, index: int) -> optuna.samplers.BaseSampler:
    """The sampler for one trial, seeded by the search's seed and the trial's index."""
    seed = int(np.random.SeedSequence(search.seed, spawn_key=(index, 1)).generate_state(1)[0])
    if search.sampler == "tpe":
        # constant_liar counts running trials as bad ones, so that workers do not try similar settings at once.
        n_startup_trials = min(10, max(1, search.trials // 3))
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=n_startup_trials, constant_liar=True)
    if search.sampler == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def pruner(search: Search) -> optuna.pruners.BasePruner:
    """The pruner; it prunes no trial in its first third, because low learning rates start slowly."""
    third = max(1, search.evaluations // 3)
    if search.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=third + 1, n_min_trials=2)
    if search.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=third, reduction_factor=3)
    return optuna.pruners.NopPruner()
