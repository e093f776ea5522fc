"""A search as a function: `marl_sb3.tune(...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from marl_sb3.config import TrainConfig
from marl_sb3.errors import ConfigError
from marl_sb3.tuning.run_search import Watcher, new_name, open_study, run_search, study_folder
from marl_sb3.tuning.search import Search, read_search
from marl_sb3.tuning.space import Space, parse_grid, parse_space, read_space
from marl_sb3.tuning.study import StudyOfTrials

DEFAULT_ENV = "arena"
DEFAULT_TRIALS = 50


def tune(
    env: str | None = None,
    *,
    trials: int | None = None,
    workers: int = 1,
    space: str | Path | Mapping[str, Any] | None = None,
    watch: Watcher | None = None,
    **options: Any,
) -> StudyOfTrials:
    """What `python -m marl_sb3.tune` does, without its display.

    Args:
        env: an env id; None: the arena, or the study's.
        trials: how many settings are tried; None: 50, or the whole grid.
        workers: processes that run them.
        space: what is chosen: a file, or the same as a mapping.
        watch: called twice a second with the study.
        options: see `prepare_study`.

    Returns:
        The study: `best_config()`, `trials()`, `checkpoints()`, `folder`; `.optuna` is Optuna's.

    Raises:
        ConfigError: a setting is wrong; nothing has been run then.
        SearchError: worker processes cannot be started.
    """
    study = prepare_study(env, trials=trials, space=space, **options)
    run_search(study, workers, watch)
    return study


def prepare_study(
    env: str | None = None,
    *,
    trials: int | None = None,
    study: str | None = None,
    space: str | Path | Mapping[str, Any] | None = None,
    grid: Sequence[str] | Mapping[str, Sequence[Any]] = (),
    sampler: str | None = None,
    pruner: str | None = None,
    root: str | Path = "runs",
    **options: Any,
) -> StudyOfTrials:
    """Check everything, and begin a study or go on with it; no trial is run.

    Args:
        env: see `tune`.
        trials: see `tune`.
        study: its name; one that exists goes on. None: a new one.
        space: see `tune`.
        grid: exactly these values by name, instead of a space; as mapping, or as texts `name=a,b,c`.
        sampler: `tpe`, `random`, `grid` or `gp`; None: `tpe`, or `grid` for a grid.
        pruner: `median`, `asha` or `none`; None: `median`, or `none` for a grid.
        root: the folder below which studies are kept, in `tune/<env>/<name>`.
        options: the other fields of `Search`; None means not given.

    Raises:
        ConfigError: a setting is wrong; nothing has been run then.
    """
    name = new_name() if study is None else study
    if not name or any(c in name for c in "/\\") or name.startswith("."):
        raise ConfigError(f"--study is {name!r}; accepted: a name that can be a folder's", key="study")
    env = env or _env_of(name, Path(root)) or DEFAULT_ENV
    folder = study_folder(env, name, Path(root))
    given = {key: value for key, value in options.items() if value is not None}
    chosen = _space(env, given.get("algo") or TrainConfig.algo, space, grid)
    before = read_search(folder, env)
    if before is not None and space is None and not grid:
        chosen = before.parsed_space()
        sampler, pruner = sampler or before.sampler, pruner or before.pruner
    sampler = sampler or ("grid" if grid else "tpe")
    combinations = prod(len(parameter.bounds) for parameter in chosen.parameters)
    if sampler == "grid":
        trials = combinations
    elif trials is None:
        trials = before.trials if before is not None else DEFAULT_TRIALS
    pruner = pruner or ("none" if sampler == "grid" else "median")
    search = Search(env, chosen.to_plain(), name, trials, sampler=sampler, pruner=pruner, **given)
    return open_study(search, folder)


def _env_of(name: str, root: Path) -> str | None:
    """The env of the study of this name, if there is one."""
    for file in (root / "tune").glob(f"*/{name}/study.yaml"):
        search = read_search(file.parent)
        return None if search is None else search.env
    return None


def _space(
    env: str,
    algo: str,
    space: str | Path | Mapping[str, Any] | None,
    grid: Sequence[str] | Mapping[str, Sequence[Any]],
) -> Space:
    if grid and space is not None:
        raise ConfigError("a space and a grid are given; accepted: one of them", key="grid")
    if isinstance(grid, Mapping):
        if grid:
            return parse_space({name: {"choices": list(values)} for name, values in grid.items()}, "grid")
    elif grid:
        return parse_grid(grid)
    return parse_space(space, "space") if isinstance(space, Mapping) else read_space(env, algo, space)
