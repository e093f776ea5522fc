"""A search as a function of the library: `marl_sb3.tune(...)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from marl_sb3.config import Hparams
from marl_sb3.config.algorithms import AlgorithmInfo
from marl_sb3.config.ray import RaySettings
from marl_sb3.display.screen import in_notebook, standard_console
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.tuning.checks import require_trainable_preset
from marl_sb3.tuning.jobs.confirmations import confirm
from marl_sb3.tuning.jobs.trials import Watcher, run_trials
from marl_sb3.tuning.prepare import Grid, SpaceSource, prepare_study
from marl_sb3.tuning.report import write_files
from marl_sb3.tuning.search import Pruner, Sampler, require_integer
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.view import ConfirmView, SearchView

if TYPE_CHECKING:
    from marl_sb3.tuning.jobs.ray import RayTrainer

__all__ = ["prepare_study", "run_study", "trainer_on", "tune"]


def tune(
    env: str | EnvFactory | None = None,
    *,
    trials: int | None = None,
    timesteps: int | None = None,
    policies: str | None = None,
    algo: str | AlgorithmInfo | None = None,
    n_envs: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    stop: Mapping[str, float] | None = None,
    hparams: Hparams | None = None,
    space: SpaceSource = None,
    grid: Grid = (),
    sampler: Sampler | None = None,
    pruner: Pruner | None = None,
    objective: str | None = None,
    mode: Literal["max", "min"] | None = None,
    over: str | None = None,
    evaluations: int | None = None,
    evaluation_episodes: int | None = None,
    study: str | None = None,
    new_study: bool = False,
    storage: str | None = None,
    root: str | Path = "runs",
    vectorizer: str | None = None,
    device: str | None = None,
    workers: int = 1,
    confirm_seeds: int = 0,
    confirm_best: int = 1,
    watch: Watcher | None = None,
    progress_bar: bool | None = None,
    ray: RaySettings | None = None,
) -> TuneStudy:
    """Search for better settings, as `python -m marl_sb3.tune` does.

    Trials run in worker processes. An env that these cannot import, such as a class of a script, is trained in this
    process.

    Args:
        env: an env id, or a factory of a `ParallelEnv`; None: the arena, or the study's env.
        trials: the number of settings to try; None: 50, or the whole grid.
        timesteps: env steps of a trial; None: as in the preset.
        policies: `shared` or `per_agent`; None: as in the preset.
        algo: name of the algorithm; or an `AlgorithmInfo`, or the place of one as `package.module:NAME`. None: PPO.
        n_envs: number of envs of a trial; None: as in the preset.
        seed: determines the seed of every trial and the draws of the sampler; None: 0.
        settings: set in every trial and therefore not searched, by keys as after `--set`.
        stop: values by metric; a trial ends when one metric reaches its value.
        hparams: a file of settings by env id, or a mapping, instead of the shipped preset.
        space: a space file, or a mapping in the same form; None: the space shipped for the algorithm.
        grid: the exact values of each parameter, instead of a space: a mapping, or strings `name=a,b,c`.
        sampler: how settings are chosen; None: `tpe`, or `grid` with a grid.
        pruner: which trials end early; None: `median`, or `none` with a grid.
        objective: `sum` or `min` of the agents' returns, an agent's id, the name of a custom metric, or the flat name
            of any metric; None: `sum`.
        mode: whether the objective is maximized or minimized; None: `max`.
        over: which evaluations of a trial count: `last`, `best` or `mean_of_last_K`; None: `last`.
        evaluations: number of evaluations of a trial, equally spaced; None: 10, or fewer in a short trial.
        evaluation_episodes: episodes of an evaluation; None: 10.
        study: the study's name; an existing study is continued with its own options. None: a new name.
        new_study: start a new study even if its name is similar to that of another one, and may be a typo.
        storage: the URL of a database, such as `sqlite:///study.db`; None: a journal in the study's folder.
        root: studies are in `tune/<env>/<name>` below this folder.
        vectorizer: see `make_vec_env`.
        device: as in SB3.
        workers: the number of processes that run trials.
        confirm_seeds: train the best trials and the preset again with this many fresh seeds each; see
            `marl_sb3.tuning.confirmed.confirmed` for the results.
        confirm_best: the number of trials to train again.
        watch: called twice a second with the study.
        progress_bar: show the progress: a live view on terminals and in notebooks, a line for each trial elsewhere.
            None: in notebooks only.
        ray: the Ray cluster that trains `workers` runs at a time; None: worker processes of this machine do.

    Returns:
        The study: `trials`, `best_trial`, `best_config()`, `checkpoints()`, `folder`; `.optuna` is Optuna's study. Its
        folder has `best.yml`, `trials.csv` and, with plotly, `report.html`.

    Raises:
        ConfigError: a setting is wrong; no trial was run.
        SearchError: worker processes cannot be started, or every trial fails.
    """
    require_counts(workers, confirm_seeds, confirm_best)
    with trainer_on(ray, workers) as trainer:
        prepared = prepare_study(
            env,
            trials=trials,
            timesteps=timesteps,
            policies=policies,
            algo=algo,
            n_envs=n_envs,
            seed=seed,
            settings=settings,
            stop=stop,
            hparams=hparams,
            space=space,
            grid=grid,
            sampler=sampler,
            pruner=pruner,
            objective=objective,
            mode=mode,
            over=over,
            evaluations=evaluations,
            evaluation_episodes=evaluation_episodes,
            study=study,
            new_study=new_study,
            storage=storage,
            root=root,
            vectorizer=vectorizer,
            device=device,
        )
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
    with SearchView(console, study, keep=keep) if console else nullcontext() as view:
        watchers: list[Watcher] = [*([view.update] if view else []), *([watch] if watch else [])]
        run_trials(study, workers, lambda study: _call_all(watchers, study), trainer)
    if confirm_seeds:
        with ConfirmView(console, keep=keep) if console else nullcontext() as confirm_view:
            update = confirm_view.update if confirm_view else None
            confirm(study, confirm_best, confirm_seeds, workers, update, trainer)


def _call_all(watchers: Sequence[Watcher], study: TuneStudy) -> None:
    for watcher in watchers:
        watcher(study)
