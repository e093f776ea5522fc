"""The study of a search: its trials and finalists, which workers claim one at a time, and what came of them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.metrics.statistics import table
from marl_sb3.core.vec_env.seeding import Stream, spawned
from marl_sb3.doors import counterpart
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.extensions.display.text import number, short_path
from marl_sb3.files.regular import append_text
from marl_sb3.results.result_log import read_results
from marl_sb3.runs.building import resolved
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.tools.tuning import trial as key
from marl_sb3.tools.tuning.search import Search
from marl_sb3.tools.tuning.storage import damage_named, open_storage
from marl_sb3.tools.tuning.trial import header, lineage, row, run_folder, value_of

IN_PROCESS = "here-"  # the beginning of the name of a worker that trains in the process of the search


class TrialQueue:
    """The trials of an Optuna study, shared by the workers of a search, which may be killed at any time.

    Args:
        study: Optuna's study.
        folder: of the search; the logs of its workers are below.
        total: the number of trials, which are enqueued when they are claimed; 0: only those of `enqueue`.
        sampler: makes the sampler of a trial from its index.
        draw: draws the parameters of a trial.
    """

    def __init__(
        self,
        study: optuna.Study,
        folder: Path,
        total: int = 0,
        sampler: Callable[[int], optuna.samplers.BaseSampler] | None = None,
        draw: Callable[[optuna.trial.Trial], object] = lambda trial: None,
    ) -> None:
        self.optuna = study
        self._storage = study._storage
        self._folder = folder
        self._total = total
        self._sampler, self._draw = sampler, draw
        self._lock = threading.Lock()

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials so far, ordered by number."""
        return self.optuna.get_trials(deepcopy=False)

    def latest(self, one: str, other: str) -> dict[tuple[int, int], FrozenTrial]:
        """The latest attempt of each trial, by two of its attributes."""
        return {(trial.user_attrs[one], trial.user_attrs[other]): trial for trial in self.trials}

    def enqueue(self, params: Mapping[str, Any], **stored: Any) -> None:
        """Add a trial with these parameters, and with attributes that are stored with it."""
        self.optuna.enqueue_trial(dict(params), user_attrs=stored)

    def claim(self, worker: str) -> optuna.trial.Trial | None:
        """Claim a trial for a worker, and draw its parameters; None if there are none left."""
        log = self._folder / "workers" / f"{worker}.log"
        log.parent.mkdir(exist_ok=True)
        append_text(log).close()
        with self._lock:  # until its parameters are drawn: the study has the sampler of one trial
            if (trial := self._asked(worker)) is not None:
                with suppress(Exception):  # what fails, fails again in its run
                    self._draw(trial)
        return trial

    def _asked(self, worker: str) -> optuna.trial.Trial | None:
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

    def workers(self) -> set[str]:
        """The workers of this folder's searches; a database has those of others, too."""
        return {path.stem for path in (self._folder / "workers").glob("*")}

    def requeue_dead(self) -> None:
        """Requeue the trials that a search of this folder ran which has died; see `requeue`.

        Its worker processes ended with it, which is not the fault of their trials; any other worker was the search.
        """
        workers = self.workers()
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


# --- The study --------------------------------------------------------------------------------------------------------


_MOST_SHOWN = 10  # trials in a notebook
_SEARCH = "search"  # the study attribute that holds the search, in the study's storage
_DIRECTION: Mapping[str, Literal["maximize", "minimize"]] = {"max": "maximize", "min": "minimize"}


class TuneStudy:
    """The trials of a search and their results; `.optuna` is Optuna's study.

    Args:
        search: the settings of the search.
        folder: the study's folder.
        factory: makes the env, if the env id in the search does not.

    Attributes:
        folder: absolute, because an env may change the working folder of the process.
        continued: whether the study existed before it was opened.
        queue: the trials, for workers.
        finals: the trainings of finalists and the preset with fresh seeds, for workers: a study of its own in the same
            storage, so that samplers do not take them for trials.

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
            open_study = partial(
                optuna.create_study,
                storage=open_storage(folder, search.storage),
                directions=[_DIRECTION[objective.mode] for objective in search.objectives()],
                load_if_exists=True,
            )
            self.optuna = open_study(study_name=search.name, pruner=pruner(search), sampler=sampler(search, 0))
            finals = open_study(study_name=f"{search.name}, finalists", sampler=optuna.samplers.RandomSampler())
        total = 0 if search.is_population else search.trials
        self.queue = TrialQueue(self.optuna, folder, total, partial(sampler, search), self.space.suggest)
        self.finals = TrialQueue(finals, folder)
        self.n_done = self.queue.n_done

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error; its message refers to what does the same here as a name of Ray Tune's results."""
            instead = counterpart(name, "study", owner=self)
            raise AttributeError(f"TuneStudy has no {name!r}{instead}", name=name, obj=self)

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials so far, ordered by number."""
        return self.queue.trials

    def begin(self) -> None:
        """Set up a new study, whose first trial is the preset; or requeue the trials of a search that has died.

        Raises:
            ConfigError: the storage holds a different search of this name, or lacks the trials in the folder.
        """
        self._require_same_search()
        preset = self.search.preset_params()
        # Of a population, `enqueue_generation` enqueues all.
        begun = [] if preset is None or self.search.is_population else [preset]
        first = list(self.space.grid()) if self.search.sampler == "grid" else begun
        # Those that are missing: a kill may leave the grid incomplete.
        for params in itertools.islice(first, count(self.trials), None):
            self.queue.enqueue(params)
        self.queue.requeue_dead()
        self.finals.requeue_dead()

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

    # --- Results -----------------------------------------------------------------------------------------------------

    def completed(self) -> list[FrozenTrial]:
        """The complete trials, best first."""
        return best_first(self.trials, self.search.objectives()[0].sign)

    def only_value(self) -> float | None:
        """The value of all evaluations, if two or more complete trials have no other one; else None."""
        complete = self.completed()
        values = {value for trial in complete for value in (*trial.values, *trial.intermediate_values.values())}
        return float(values.pop()) if len(complete) > 1 and len(values) == 1 else None

    def front(self) -> list[FrozenTrial]:
        """The complete trials that no other one beats in all objectives, best first; of one objective, the best."""
        if not self.completed():
            return []
        numbers = {trial.number for trial in self.optuna.best_trials}
        return [trial for trial in self.completed() if trial.number in numbers]

    @property
    def best_trial(self) -> FrozenTrial:
        """The complete trial with the best value, partly by chance; with several objectives, of the first.

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
        mode = mode or self.search.objectives()[0].mode
        if mode not in _DIRECTION:
            refuse("mode", mode, "max or min")

        def value(trial: FrozenTrial) -> float | None:
            if metric is None:
                return value_of(trial)
            results = read_results(self.folder_of(trial))  # empty if it was trained on another machine
            return flatten(results[-1]).get(metric) if results else None

        known = [(found, trial) for trial in self.completed() if (found := value(trial)) is not None]
        if not known:
            raise ConfigError(f"no trial has been trained to its end with a value of {metric or 'the objective'}")
        return self.config_of((max if mode == "max" else min)(known, key=lambda pair: pair[0])[1])

    def dataframe(self) -> Any:
        """All trials with the columns of `trials.csv`; parameters are as Optuna stores them, lists as JSON.

        Returns:
            A `pandas.DataFrame` if pandas is installed; otherwise a list of dictionaries.
        """
        return table([row(self.search, trial, lambda _, stored: stored) for trial in self.trials], header(self.search))

    def plot(self, best: int = 5, metrics: Sequence[str] = (), out: str | Path | None = None) -> Any:
        """Plot learning curves of the best trials; see `Run.plot`.

        Args:
            best: how many of them.
            metrics: flat names, a panel each; none: the sum of returns, and the return of each agent.
            out: also a file to write it to.

        Raises:
            ConfigError: no trial was trained to its end, there is no such metric, or matplotlib is not installed.
        """
        from marl_sb3.results.drawing import plot_paths

        folders = [self.folder_of(trial) for trial in self.completed()[:best]]
        if not folders:
            raise ConfigError("no trial was trained to its end; accepted: a search with complete trials", key="study")
        return plot_paths(folders, metrics, out=out)

    def __repr__(self) -> str:
        search, best = self.search, next(iter(self.completed()), None)
        parts = [f"{search.env}, {self.n_done()} of {search.n_trainings} trials"]
        if best is not None:
            parts.append(f"best {number(value_of(best))} (trial {best.number})")
        return f"<Study {short_path(self.folder)}: {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        """Return the study as notebooks show it: with its best trials."""
        from marl_sb3.extensions.display.page import note, table

        best, names = self.completed()[:_MOST_SHOWN], [parameter.name for parameter in self.space.parameters]
        rows = [(trial.number, value_of(trial), *(trial.params.get(name) for name in names)) for trial in best]
        return note(repr(self)) + (table(rows, ("trial", "objective", *names), best=0) if rows else "")

    def config_of(self, trial: FrozenTrial) -> TrainConfig:
        """The resolved configuration of a trial that was started."""
        files = RunFolder(self.folder_of(trial))
        if files.config_file.is_file():
            return files.read_config(self.search.env)
        # It was trained on another machine.
        return resolved(self.search.trial_config(self.space.settings(trial.params), trial.user_attrs[key.SEED]))

    def settings_of(self, trial: FrozenTrial) -> dict[str, Any]:
        """The settings of a trial by key, as after `--set`; of a member that has changed its, with `extensions`."""
        settings, phases = self.space.settings(trial.params), []
        members = lineage(trial, self.trials if key.PARENT in trial.user_attrs else ())
        changed = [(each, after) for each, after in pairwise(members) if each.params != after.params]
        n_timesteps = self.search.config({}, n_timesteps=self.search.timesteps).n_timesteps if changed else 0
        for each, _ in changed:
            own = self.space.settings(each.params)
            other = {name: own[name] for name in own if own[name] != settings[name]}
            phase = {"until": each.user_attrs[key.ENV_STEPS], "n_timesteps": n_timesteps}
            phases.append({**phase, "settings": other} if other else phase)
        return {**settings, "extensions": phases} if phases else settings

    def folder_of(self, trial: FrozenTrial | optuna.trial.Trial) -> Path:
        """The run folder of a trial."""
        return self.folder / run_folder(trial.number)

    def checkpoints(self) -> dict[int, Path]:
        """The folders of checkpoints by trial number; trials without checkpoints are left out."""
        folders = {trial.number: self.folder_of(trial) / "checkpoints" for trial in self.trials}
        return {number: folder for number, folder in folders.items() if folder.is_dir()}


def best_first(trials: Iterable[FrozenTrial], sign: float) -> list[FrozenTrial]:
    """The complete trials, best first; of equal values the earlier trial comes first; of a population, its last ones.

    Args:
        sign: 1 where more is better, -1 where less is.
    """
    complete = [
        trial
        for trial in trials
        if trial.state == TrialState.COMPLETE and trial.values is not None and not trial.user_attrs.get(key.GOES_ON)
    ]
    return sorted(complete, key=lambda trial: (-sign * trial.values[0], trial.number))


def sampler(search: Search, index: int) -> optuna.samplers.BaseSampler:
    """The sampler for one trial, seeded by the search's seed and the trial's index."""
    seed = int(spawned(search.seed, Stream.SAMPLERS, index).generate_state(1)[0])
    if search.sampler == "tpe":
        # constant_liar counts running trials as bad ones, so that workers do not try similar settings at once.
        n_startup_trials = min(10, max(1, search.trials // 3))
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=n_startup_trials, constant_liar=True)
    if search.sampler == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def pruner(search: Search) -> optuna.pruners.BasePruner:
    """The pruner; it prunes no trial in its first third, because low learning rates start slowly.

    Replayed on curves of 60 random trainings of the arena, `median` kept two thirds of the best five for half of the
    cost, and `asha` 85 % for 55 % of it; with a reduction factor of 3 it had kept half.
    """
    third = max(1, search.evaluations // 3)
    if search.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=third, n_min_trials=2)
    if search.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=third, reduction_factor=2)
    return optuna.pruners.NopPruner()
