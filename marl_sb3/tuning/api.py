"""A search as a function of the library: `marl_sb3.tune(...)`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from rich.console import Console

from marl_sb3.config.ray import RaySettings
from marl_sb3.display.screen import in_notebook, standard_console
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.tuning.checks import require_trainable_preset
from marl_sb3.tuning.jobs.confirmations import confirm
from marl_sb3.tuning.jobs.trials import Watcher, run_trials
from marl_sb3.tuning.options import SearchOptions, takes_search_options
from marl_sb3.tuning.prepare import prepare_study
from marl_sb3.tuning.report import write_files
from marl_sb3.tuning.search import require_integer
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.view import SearchView

if TYPE_CHECKING:
    from marl_sb3.tuning.jobs.ray import RayTrainer

__all__ = ["prepare_study", "run_study", "trainer_on", "tune"]


@takes_search_options
def tune(
    env: str | EnvFactory | None = None,
    *,
    workers: int = 1,
    confirm_seeds: int = 0,
    confirm_best: int = 1,
    watch: Watcher | None = None,
    progress_bar: bool | None = None,
    ray: RaySettings | None = None,
    **options: Unpack[SearchOptions],
) -> TuneStudy:
    """Search for better settings, as `python -m marl_sb3.tune` does.

    Trials run in worker processes. An env that these cannot import, such as a class of a script, is trained in this
    process.

    Args:
        env: an env id, or a factory of a `ParallelEnv`; None: the arena, or the study's env.
        workers: the number of processes that run trials.
        confirm_seeds: train the best trials and the preset again with this many fresh seeds each; see
            `marl_sb3.tuning.confirmed.confirmed` for the results.
        confirm_best: the number of trials to train again.
        watch: called twice a second with the study.
        progress_bar: show the progress: a live view on terminals and in notebooks, a line for each trial elsewhere.
            None: in notebooks only.
        ray: the Ray cluster that trains `workers` runs at a time; None: worker processes of this machine do.
        options: those of `SearchOptions`.

    Returns:
        The study: `trials`, `best_trial`, `best_config()`, `checkpoints()`, `folder`; `.optuna` is Optuna's study. Its
        folder has `best.yml`, `trials.csv` and, with plotly, `report.html`.

    Raises:
        ConfigError: a setting is wrong; no trial was run.
        SearchError: worker processes cannot be started, or every trial fails.
    """
    require_counts(workers, confirm_seeds, confirm_best)
    with trainer_on(ray, workers) as trainer:
        prepared = prepare_study(env, **options)
        if confirm_seeds:
            require_trainable_preset(prepared)
        shown = in_notebook() if progress_bar is None else progress_bar
        console = standard_console() if shown else None
        try:
            run_study(prepared, workers, confirm_seeds, confirm_best, watch, console, keep=True, trainer=trainer)
        finally:
            write_files(prepared)
    return prepared


@contextmanager
def trainer_on(ray: RaySettings | None, workers: int) -> Iterator[RayTrainer | None]:
    """Connect to the cluster that trains `workers` runs at a time; without `ray`, return None.

    Raises:
        ConfigError: see `RayTrainer`.
    """
    if ray is None:
        yield None
        return
    from marl_sb3.tuning.jobs.ray import RayTrainer

    with closing(RayTrainer(replace(ray, runners=workers))) as trainer:
        yield trainer


def require_counts(workers: int, confirm_seeds: int, confirm_best: int) -> None:
    """Check the numbers that `run_study` takes.

    Raises:
        ConfigError: one of them is no integer, or too small.
    """
    require_integer("workers", workers, 1)
    require_integer("confirm_seeds", confirm_seeds, 0)
    require_integer("confirm_best", confirm_best, 1)


def run_study(
    study: TuneStudy,
    workers: int,
    confirm_seeds: int,
    confirm_best: int,
    watch: Watcher | None = None,
    console: Console | None = None,
    *,
    keep: bool = False,
    trainer: RayTrainer | None = None,
) -> None:
    """Run the trials of a prepared study, then its confirmations; see `tune`.

    Args:
        confirm_best: the number of trials to train again.
        watch: called twice a second with the study.
        console: where to show the progress; None: nowhere.
        keep: leave the last picture on the screen.
        trainer: from `trainer_on`.
    """
    with SearchView(console, study, keep=keep) as view:

        def look(study: TuneStudy) -> None:
            view.update(study)
            if watch is not None:
                watch(study)

        run_trials(study, workers, look, trainer)
    if confirm_seeds:
        with SearchView(console, keep=keep) as view:
            confirm(study, confirm_best, confirm_seeds, workers, view.update_confirmations, trainer)
