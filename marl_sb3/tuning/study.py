"""The study behind a search: Optuna's, with trials that are handed out to workers and taken back from dead ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial, TrialState

from marl_sb3.config import TrainConfig
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.errors import ConfigError
from marl_sb3.metrics import flatten
from marl_sb3.metrics.table import table
from marl_sb3.runs.build import resolved
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.reader import read_results
from marl_sb3.tuning.search import Search
from marl_sb3.tuning.storage import damage_named, open_storage
from marl_sb3.tuning.trial_attributes import DEATHS, ERROR, INDEX, KILLED, RETRY_OF, SEED, WORKER

_SEARCH = "search"  # the study's own note of what is searched, wherever it is kept
_DIRECTION = {"max": "maximize", "min": "minimize"}


class TuneStudy:
    """A study: its trials, and what came out; `.optuna` is Optuna's own.

    Args:
        search: what is searched.
        folder: the study's.
        factory: makes the env, where the id in the search is only its name.

    Attributes:
        continued: whether it had been begun before it was opened here.

    Raises:
        ConfigError: the storage cannot be opened, or what it holds is not of this search.
    """

    def __init__(self, search: Search, folder: Path, factory: EnvFactory | None = None) -> None:
        self.search = search
        self.folder = folder
        self.factory = factory
        self.continued = False
        self.space = search.space
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._storage = open_storage(folder, search.storage)
        with damage_named(folder, search.storage):
            self.optuna = optuna.create_study(
                storage=self._storage,
                study_name=search.name,
                direction=_DIRECTION[search.mode],  # type: ignore[arg-type]
                pruner=_pruner(search),
                sampler=_sampler(search, 0),
                load_if_exists=True,
            )
        self._lock = FileLock(folder / ".trials.lock")

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials so far, in the order of their numbers."""
        return self.optuna.get_trials(deepcopy=False)

    def begin(self) -> None:
        """Set up a new study, or take back what workers that are no more have left of an old one.

        Raises:
            ConfigError: the storage holds a study of this name of something else, or not the trials of the folder.
        """
        with self._lock:
            self._require_same_search()
            if self.search.sampler == "grid":
                there = {trial.user_attrs.get(INDEX) for trial in self.trials}  # a search may be killed in between
                for index, params in enumerate(self.space.grid()):
                    if index not in there:
                        self.optuna.enqueue_trial(params, user_attrs={INDEX: index})
        self.requeue_dead()

    def _require_same_search(self) -> None:
        plain = {name: value for name, value in self.search.to_plain().items() if name not in ("trials", "storage")}
        held = self.optuna.user_attrs.get(_SEARCH)
        if held is None and not self.trials:
            if (self.folder / "trials").exists():
                words = f"{self.folder} has trials that its storage does not know; accepted: another --study name"
                raise ConfigError(words, key="storage")
            self.optuna.set_user_attr(_SEARCH, plain)
            return
        theirs = held if isinstance(held, dict) else {}
        # What an older version did not write was not set.
        if other := ", ".join(name for name in plain if theirs.get(name) != plain[name]):
            words = f"the storage holds a study {self.search.name!r} with another {other}"
            raise ConfigError(f"{words}; accepted: another --study name", key="study")

    def next_trial(self, worker: str) -> optuna.trial.Trial | None:
        """A trial for a worker; None if all have been handed out."""
        with self._lock:
            trials = self.trials
            waiting = next((trial for trial in trials if trial.state == TrialState.WAITING), None)
            index = _count(trials) if waiting is None else _index_of(waiting, trials)
            if waiting is None and (index >= self.search.trials or self.search.sampler == "grid"):
                return None
            # A trial has the name of its worker before it runs: whoever is killed in between leaves none without.
            notes = {WORKER: worker, INDEX: index}
            if waiting is None:
                self.optuna.enqueue_trial({}, user_attrs=notes)
            else:
                self._note(waiting, notes)
            # What is drawn depends on the trials before it alone: not on who asks, nor on what was killed.
            self.optuna.sampler = _sampler(self.search, index)
            trial = self.optuna.ask()
            # Where other machines share the database it may be another one than was meant.
            trials = self.trials
            trial.set_user_attr(WORKER, worker)
            trial.set_user_attr(INDEX, _index_of(trials[trial.number], trials))
            return trial

    def _note(self, trial: FrozenTrial, notes: Mapping[str, Any]) -> None:
        for name, note in notes.items():
            self._storage.set_trial_user_attr(trial._trial_id, name, note)

    def requeue_dead(self) -> int:
        """Mark trials whose workers are no more as failed, and let each be tried once again.

        Returns:
            How many these were.
        """
        with self._lock:
            dead = [trial for trial in self._running() if not self._is_alive(trial.user_attrs[WORKER])]
            for trial in dead:
                self.requeue(trial.number, KILLED)
        return len(dead)

    def in_flight(self) -> list[str]:
        """The workers of this folder that are at a trial."""
        workers = [trial.user_attrs[WORKER] for trial in self._running()]
        return [worker for worker in workers if self._is_alive(worker)]

    def is_waiting(self) -> bool:
        """Whether a trial is to be tried that no worker has begun."""
        return any(trial.state == TrialState.WAITING for trial in self.trials)

    def _running(self) -> list[FrozenTrial]:
        """What workers of this folder have begun: a database may have others, on other machines, to look after."""
        ours = {path.stem for path in (self.folder / "workers").glob("*")}  # locks and logs
        running = [trial for trial in self.trials if trial.state == TrialState.RUNNING]
        return [trial for trial in running if trial.user_attrs.get(WORKER) in ours]

    def requeue(self, number: int, why: str) -> None:
        """A trial that was broken off: failed, and waiting once more, unless its process has ended for the second time.

        Args:
            number: of the trial.
            why: `KILLED` or `INTERRUPTED`.
        """
        trial = self.trials[number]
        deaths = trial.user_attrs.get(DEATHS, 0) + (why == KILLED)
        self._note(trial, {ERROR: why})
        # First the new one: whoever is killed in between leaves this one running, and it is given back again.
        if deaths <= 1 and all(other.user_attrs.get(RETRY_OF) != number for other in self.trials):
            notes = {INDEX: trial.user_attrs[INDEX], RETRY_OF: number, DEATHS: deaths}
            self.optuna.enqueue_trial(trial.params, user_attrs=notes)
        self.optuna.tell(number, state=TrialState.FAIL)

    # --- What came out -----------------------------------------------------------------------------------------------

    def n_done(self) -> int:
        """How many trials have come to their end; one that is tried again has not."""
        trials = self.trials
        n_tried_again = len(trials) - _count(trials)
        return max(0, sum(trial.state.is_finished() for trial in trials) - n_tried_again)

    def completed(self) -> list[FrozenTrial]:
        """The trials that were trained to their end, best first."""
        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE and trial.value is not None]
        sign = -1.0 if self.search.mode == "max" else 1.0
        return sorted(done, key=lambda trial: (sign * (trial.value or 0.0), trial.number))

    @property
    def best_trial(self) -> FrozenTrial:
        """The best of the trials that were trained to their end.

        Raises:
            ConfigError: there is none.
        """
        best = next(iter(self.completed()), None)
        if best is None:
            raise ConfigError("no trial has been trained to its end", key="study")
        return best

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

    def dataframe(self) -> Any:
        """A row for each trial, with the columns of `trials.csv`: parameters (lists as JSON), value, folder.

        A `pandas.DataFrame` where pandas is installed; otherwise a list of dictionaries with the same names.
        """
        from marl_sb3.tuning.trial_rows import header, record

        return table([record(self, trial) for trial in self.trials], header(self))

    def __repr__(self) -> str:
        search, best = self.search, next(iter(self.completed()), None)
        parts = [f"{search.env}, {self.n_done()} of {search.trials} trials"]
        if best is not None:
            parts.append(f"best {best.value:,.2f} (trial {best.number})")
        return f"<Study {self.folder}: {', '.join(parts)}>"

    def config_of(self, trial: FrozenTrial) -> TrainConfig:
        """The resolved configuration of a trial that has been started."""
        files = RunFolder(self.folder_of(trial))
        if files.config_file.is_file():
            return files.read_config(self.search.env)
        # It was run in another folder, on another machine.
        return resolved(self.search.trial_config(self.space.settings(trial.params), trial.user_attrs[SEED]))

    def folder_of(self, trial: FrozenTrial | optuna.trial.Trial) -> Path:
        """Its run folder."""
        return self.folder / "trials" / f"{trial.number:05d}"

    def checkpoints(self) -> dict[int, Path]:
        """The folder of each trial's checkpoints, by its number, for those that have any."""
        folders = {trial.number: self.folder_of(trial) / "checkpoints" for trial in self.trials}
        return {number: folder for number, folder in folders.items() if folder.is_dir()}

    def _value(self, trial: FrozenTrial, metric: str | None) -> float | None:
        if metric is None:
            return trial.value
        results = read_results(self.folder_of(trial))  # none if it was run in another folder, on another machine
        value = flatten(results[-1]).get(metric) if results else None
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

    def _is_alive(self, worker: str) -> bool:
        try:
            with self._worker_lock(worker).acquire(timeout=0):
                return False
        except Timeout:
            return True


def _count(trials: Iterable[FrozenTrial]) -> int:
    """How many trials there are, those tried again left out."""
    return sum(RETRY_OF not in trial.user_attrs for trial in trials)


def _index_of(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> int:
    """The place of a trial in the order of all, those tried again left out: these have the place of the first try."""
    if RETRY_OF in trial.user_attrs:
        return int(trial.user_attrs[INDEX])
    return _count(trials[: trial.number])


def _sampler(search: Search, index: int) -> optuna.samplers.BaseSampler:
    """The sampler for a trial: seeded by the search and the trial's index."""
    seed = int(np.random.SeedSequence(search.seed, spawn_key=(index, 1)).generate_state(1)[0])
    if search.sampler == "tpe":
        # A trial that is running counts as a bad one: two workers shall not try the same.
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=min(10, max(1, search.trials // 3)), constant_liar=True
        )
    if search.sampler == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def _pruner(search: Search) -> optuna.pruners.BasePruner:
    """Nothing is given up in the first third of a training, which says little: low learning rates begin slowly."""
    third = max(1, search.evaluations // 3)
    if search.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=third + 1, n_min_trials=2)
    if search.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=third, reduction_factor=3)
    return optuna.pruners.NopPruner()
