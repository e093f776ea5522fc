"""A search as a function of the library: `marl_sb3.tune(...)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any, Unpack

from rich.console import Console

from marl_sb3.core.config.values import Count, PositiveInt, require
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.remote.ray import RaySettings
from marl_sb3.tools.tuning.finals import plan_race, race_size
from marl_sb3.tools.tuning.options import SearchOptions, takes_search_options
from marl_sb3.tools.tuning.prepare import prepare_study, require_trainable_preset
from marl_sb3.tools.tuning.report import write_files
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trials import Watcher, run_finals, run_trials
from marl_sb3.tools.tuning.view import SearchView

__all__ = ["prepare_study", "prepared", "tune"]


@takes_search_options
def tune(
    env: str | EnvFactory | None = None,
    *,
    workers: int = 1,
    confirm_seeds: int | None = None,
    confirm_best: int | None = None,
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
        confirm_seeds: train the best trials and the preset again with up to this many fresh seeds each, as long as
            trials, and use a trial's settings only if they are better; see `marl_sb3.tools.tuning.finals`. None: up to
            10, as many as cost no more than the trials. A trial that is better, and the preset, are trained with as
            many others. 0: use the best trial's as they are.
        confirm_best: the number of trials to train again; None: up to 3.
        watch: called twice a second with the study.
        progress_bar: show the progress: a live view on terminals and in notebooks, a line for each trial elsewhere.
            None: in notebooks only.
        ray: the Ray cluster that trains `workers` runs at a time; None: worker processes of this machine do.
        options: those of `SearchOptions`.

    Returns:
        The study: `trials`, `best_trial`, `best_config()`, `checkpoints()`, `folder`; `.optuna` is Optuna's study. Its
        folder has `best.yml`, `trials.csv` and, with plotly, `report.html`. `finals.decide(study)` of this room says
        whose settings `best.yml` has, and why.

    Raises:
        ConfigError: a setting is wrong; no trial was run.
        SearchError: worker processes cannot be started, or every trial fails.
    """
    with prepared({"env": env, **options}, workers, confirm_seeds, confirm_best, ray) as (study, run):
        console = standard_console()
        shown = console.is_jupyter if progress_bar is None else progress_bar
        try:
            run(watch, console if shown else None, keep=True)
        finally:
            write_files(study)
    return study


@contextmanager
def prepared(
    arguments: Mapping[str, Any],
    workers: int,
    confirm_seeds: int | None,
    confirm_best: int | None,
    ray: RaySettings | None,
) -> Iterator[tuple[TuneStudy, Callable[..., None]]]:
    """Check all arguments of `tune`, connect to Ray, and prepare the study.

    Args:
        arguments: those of `prepare_study`.

    Returns:
        The study, and a function that runs its trials, then its finalists. Its arguments are `watch` of `tune`,
        the `console` that shows the progress, if any, and `keep`, whether the last picture is left there.
    """
    require("--workers", workers, PositiveInt, "workers")
    for name, given, kind in (("confirm_seeds", confirm_seeds, Count), ("confirm_best", confirm_best, PositiveInt)):
        if given is not None:
            require(f"--{name.replace('_', '-')}", given, kind, name)
    if confirm_seeds == 1:
        raise ConfigError("--confirm-seeds is 1; accepted: 0, or at least 2, for an interval", key="confirm_seeds")
    if ray is not None and arguments.get("sampler") == "pbt":
        raise _no_population_on_ray()
    with ExitStack() as stack:
        trainer = None
        if ray is not None:
            from marl_sb3.tools.tuning.ray import RayTrainer

            trainer = stack.enter_context(closing(RayTrainer(replace(ray, runners=workers)))).workers
        study = prepare_study(**arguments)
        if trainer is not None and study.search.is_population:
            raise _no_population_on_ray()
        best, seeds = race_size(study, confirm_best, confirm_seeds)
        races = seeds > 0 and len(study.search.objectives()) == 1
        if races:
            require_trainable_preset(study)

        def run(watch: Watcher | None = None, console: Console | None = None, *, keep: bool = False) -> None:
            plan_race(study, best, seeds)
            trainings = (min(best, study.search.trials) + 3) * seeds if races else 0
            with SearchView(console, study, keep=keep, race=trainings) as view:

                def look(study: TuneStudy) -> None:
                    view.update(study)
                    if watch is not None:
                        watch(study)

                run_trials(study, workers, look, trainer)
            if races:
                with SearchView(console, keep=keep, race=trainings) as view:
                    run_finals(study, workers, view.update_finals, trainer)

        yield study, run


def _no_population_on_ray() -> ConfigError:
    words = "--ray is given, where no trial can go on from the run of another one"
    return ConfigError(f"{words}; accepted with --sampler pbt: --workers N", key="ray")
