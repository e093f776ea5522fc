"""Trials that workers claim one at a time, and that are tried again if a worker dies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.trial import FrozenTrial, TrialState

from marl_sb3.errors import ConfigError
from marl_sb3.tools.tuning import trial as key


class TrialQueue:
    """The trials of an Optuna study, shared by several processes, any of which may be killed at any time.

    Args:
        study: Optuna's study.
        folder: of the search; the locks of its workers are below.
        total: the number of trials, which are enqueued when they are claimed; 0: only those of `enqueue`.
        sampler: makes the sampler of a trial from its index.
    """

    def __init__(
        self,
        study: optuna.Study,
        folder: Path,
        total: int = 0,
        sampler: Callable[[int], optuna.samplers.BaseSampler] | None = None,
    ) -> None:
        self.optuna = study
        self._storage = study._storage
        self._folder = folder
        self._total = total
        self._sampler = sampler
        self.lock = FileLock(folder / ".trials.lock")  # reentrant

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials so far, ordered by number."""
        return self.optuna.get_trials(deepcopy=False)

    def enqueue(self, params: Mapping[str, Any], **stored: Any) -> None:
        """Add a trial with these parameters, and with attributes that are stored with it."""
        self.optuna.enqueue_trial(dict(params), user_attrs=stored)

    def claim(self, worker: str) -> optuna.trial.Trial | None:
        """Claim a trial for a worker; None if there are none left."""
        with self.lock:
            while (waiting := self._waiting()) is None:
                if count(self.trials) >= self._total:
                    return None
                self.enqueue({})
            index = _index_of(waiting, self.trials)
            # Store the worker's name before the trial runs: after a kill, every running trial has one.
            for name, value in ((key.WORKER, worker), (key.INDEX, index)):
                self._storage.set_trial_user_attr(waiting._trial_id, name, value)
            if self._sampler is not None:
                # A new sampler for each trial: its draws must not depend on the worker or on earlier kills.
                self.optuna.sampler = self._sampler(index)
            trial = self.optuna.ask()
            # Another machine on the same database may have claimed the intended trial; this is then another one.
            trials = self.trials
            trial.set_user_attr(key.WORKER, worker)
            trial.set_user_attr(key.INDEX, _index_of(trials[trial.number], trials))
            return trial

    def n_done(self) -> int:
        """The number of finished trials; a trial and its retries count as one."""
        trials = self.trials
        n_retries = len(trials) - count(trials)
        return max(0, sum(trial.state.is_finished() for trial in trials) - n_retries)

    def _waiting(self) -> FrozenTrial | None:
        return next((trial for trial in self.trials if trial.state == TrialState.WAITING), None)

    def is_waiting(self) -> bool:
        """Whether a trial waits for a worker."""
        return self._waiting() is not None

    # --- Workers -----------------------------------------------------------------------------------------------------

    @contextmanager
    def working(self, worker: str) -> Iterator[None]:
        """Mark the worker as alive by a lock, which the system releases if the process dies."""
        try:
            with self._worker_lock(worker).acquire(timeout=0):
                yield
        except Timeout:
            raise ConfigError(f"{self._folder}: there is a worker {worker!r} already", key="study") from None

    def in_flight(self) -> list[str]:
        """The living workers of this folder that run a trial."""
        return [trial.user_attrs[key.WORKER] for trial in self._running(alive=True)]

    def requeue_dead(self, why: str | None = key.KILLED) -> int:
        """Mark the trials of dead workers as failed, and requeue them; see `requeue`.

        Args:
            why: `INTERRUPTED` if the search ended the workers itself, which is not the trial's fault. None: the search
                has died; worker processes, which have logs, ended with it, and any other worker was the search itself.

        Returns:
            The number of these trials.
        """
        with self.lock:
            dead = self._running(alive=False)
            for trial in dead:
                was_a_process = (self._folder / "workers" / f"{trial.user_attrs[key.WORKER]}.log").exists()
                self.requeue(trial.number, why or (key.INTERRUPTED if was_a_process else key.KILLED))
        return len(dead)

    def _running(self, *, alive: bool) -> list[FrozenTrial]:
        """The running trials of living or dead workers of this folder; a database may hold those of other machines."""
        workers = {path.stem for path in (self._folder / "workers").glob("*")}  # names of locks and logs
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
            given = {name: trial.user_attrs[name] for name in key.OF_A_FINAL if name in trial.user_attrs}
            self.enqueue(params, **given, **{key.RETRY_OF: number, key.DEATHS: deaths})
        self.optuna.tell(number, state=TrialState.FAIL)

    def _is_alive(self, worker: str) -> bool:
        try:
            with self._worker_lock(worker).acquire(timeout=0):
                return False
        except Timeout:
            return True

    def _worker_lock(self, worker: str) -> FileLock:
        folder = self._folder / "workers"
        folder.mkdir(exist_ok=True)
        return FileLock(folder / f"{worker}.lock")


def count(trials: Iterable[FrozenTrial]) -> int:
    """The number of trials without retries."""
    return sum(key.RETRY_OF not in trial.user_attrs for trial in trials)


def _index_of(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> int:
    """The index of a trial among all trials without retries; a retry has the index of the first attempt."""
    while key.RETRY_OF in trial.user_attrs:
        trial = trials[trial.user_attrs[key.RETRY_OF]]
    return count(trials[: trial.number])
