"""Trials that workers claim one at a time, and that are tried again if a process dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from marl_sb3.files.regular import append_text
from marl_sb3.tools.tuning import trial as key

IN_PROCESS = "here-"  # the beginning of the name of a worker that trains in the process of the search


class TrialQueue:
    """The trials of an Optuna study, shared by the workers of a search, which may be killed at any time.

    Args:
        study: Optuna's study.
        folder: of the search; the logs of its workers are below.
        total: the number of trials, which are enqueued when they are claimed; 0: only those of `enqueue`.
        sampler: makes the sampler of a trial from its index.

    Attributes:
        lock: held by who claims a trial, until its parameters are drawn: the study has the sampler of one trial.
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
        self.lock = threading.Lock()

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials so far, ordered by number."""
        return self.optuna.get_trials(deepcopy=False)

    def enqueue(self, params: Mapping[str, Any], **stored: Any) -> None:
        """Add a trial with these parameters, and with attributes that are stored with it."""
        self.optuna.enqueue_trial(dict(params), user_attrs=stored)

    def claim(self, worker: str) -> optuna.trial.Trial | None:
        """Claim a trial for a worker; None if there are none left."""
        log = self._folder / "workers" / f"{worker}.log"
        log.parent.mkdir(exist_ok=True)
        append_text(log).close()
        while not (waiting := [trial for trial in self.trials if trial.state == TrialState.WAITING]):
            if count(self.trials) >= self._total:
                return None
            self.enqueue({})
        index = _index_of(waiting[0], self.trials)
        # Store the worker's name before the trial runs: after a kill, every running trial has one.
        for name, value in ((key.WORKER, worker), (key.INDEX, index)):
            self._storage.set_trial_user_attr(waiting[0]._trial_id, name, value)
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

    def claimed_elsewhere(self) -> FrozenTrial | None:
        """The first trial that a search of another folder has claimed, here or on another machine; None: no trial."""
        workers = self._workers()
        return next((trial for trial in self.trials if trial.user_attrs.get(key.WORKER) not in {None, *workers}), None)

    def _workers(self) -> set[str]:
        """The workers of this folder's searches; a database has those of others, too."""
        return {path.stem for path in (self._folder / "workers").glob("*")}

    def requeue_dead(self) -> None:
        """Requeue the trials that a search of this folder ran which has died; see `requeue`.

        Its worker processes ended with it, which is not the fault of their trials; any other worker was the search.
        """
        workers = self._workers()
        for trial in self.trials:
            worker = trial.user_attrs.get(key.WORKER)
            if trial.state == TrialState.RUNNING and worker in workers:
                self.requeue(trial.number, key.KILLED if str(worker).startswith(IN_PROCESS) else key.INTERRUPTED)

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
            own = (*key.OF_A_FINAL, *key.OF_A_MEMBER)
            given = {name: trial.user_attrs[name] for name in own if name in trial.user_attrs}
            self.enqueue(params, **given, **{key.RETRY_OF: number, key.DEATHS: deaths})
        self.optuna.tell(number, state=TrialState.FAIL)


def count(trials: Iterable[FrozenTrial]) -> int:
    """The number of trials without retries."""
    return sum(key.RETRY_OF not in trial.user_attrs for trial in trials)


def _index_of(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> int:
    """The index of a trial among all trials without retries; a retry has the index of the first attempt."""
    while key.RETRY_OF in trial.user_attrs:
        trial = trials[trial.user_attrs[key.RETRY_OF]]
    return count(trials[: trial.number])
