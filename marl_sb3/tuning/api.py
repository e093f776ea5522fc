"""A search as a function: `marl_sb3.tune(...)`."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from glob import escape
from pathlib import Path
from typing import Any

from rich.console import Console

from marl_sb3.config import Hparams, TrainConfig, entry_of, plain_data, require_named
from marl_sb3.config.names import as_integer, canonical_settings
from marl_sb3.display.screen import in_notebook, standard_console
from marl_sb3.envs.registry import EnvFactory, factory_id
from marl_sb3.errors import ConfigError
from marl_sb3.tuning.confirm import confirm
from marl_sb3.tuning.report import write_files
from marl_sb3.tuning.run_search import Watcher, new_name, open_study, require_trainable_preset, run_search, study_folder
from marl_sb3.tuning.search import Search, read_search, require_integer
from marl_sb3.tuning.space import Space, parse_grid, parse_space, read_space
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.view import ConfirmView, SearchView

DEFAULT_ENV = "arena"
_LONGEST_NAME = 200  # of a study, in bytes
_SIMILAR = 0.7  # from which on two names are likely to be meant as one, by difflib's ratio

_log = logging.getLogger(__name__)

Grid = Sequence[str] | Mapping[str, Sequence[Any]]


def tune(
    env: str | EnvFactory | None = None,
    *,
    workers: int = 1,
    confirm_seeds: int = 0,
    confirm_best: int = 1,
    watch: Watcher | None = None,
    progress_bar: bool | None = None,
    **options: Any,
) -> TuneStudy:
    """What `python -m marl_sb3.tune` does.

    Trials run in worker processes; only an env that those cannot import, such as a class of the script itself, is
    trained in this one.

    Args:
        env: an env id, or a factory of a `ParallelEnv`; None: the arena, or the study's.
        workers: processes that run trials.
        confirm_seeds: train the best trials and the preset again with so many fresh seeds each; see
            `marl_sb3.tuning.confirm.confirmed`.
        confirm_best: how many trials.
        watch: called twice a second with the study.
        progress_bar: show how the search goes: a live view on terminals and in notebooks, a line for each trial
            elsewhere. None: in notebooks only.
        options: see `prepare_study`.

    Returns:
        The study: `trials`, `best_trial`, `best_config()`, `checkpoints()`, `folder`; `.optuna` is Optuna's. Its folder
        has `best.yml`, `trials.csv` and, with plotly, `report.html`.

    Raises:
        ConfigError: a setting is wrong; nothing has been run then.
        SearchError: worker processes cannot be started, or every trial fails.
    """
    require_integer("workers", workers, 1)
    require_integer("confirm_seeds", confirm_seeds, 0)
    require_integer("confirm_best", confirm_best, 1)
    study = prepare_study(env, **options)
    if confirm_seeds:
        require_trainable_preset(study)
    shown = in_notebook() if progress_bar is None else progress_bar
    try:
        run_study(study, workers, confirm_seeds, confirm_best, watch, standard_console() if shown else None, keep=True)
    finally:
        write_files(study)
    return study


def run_study(
    study: TuneStudy,
    workers: int,
    confirm_seeds: int,
    confirm_best: int,
    watch: Watcher | None = None,
    console: Console | None = None,
    *,
    keep: bool = False,
) -> None:
    """Run the trials of a prepared study, then train the best ones again; see `tune`.

    Args:
        study: from `prepare_study`.
        workers: processes that run trials.
        confirm_seeds: how many fresh seeds; 0: train none again.
        confirm_best: how many trials are trained again.
        watch: called twice a second with the study.
        console: where it is shown; None: nowhere.
        keep: leave the last picture where it is.
    """
    with SearchView(console, study, keep=keep) if console else nullcontext() as view:
        watchers: list[Watcher] = [*([view.update] if view else []), *([watch] if watch else [])]
        run_search(study, workers, lambda study: _call_all(watchers, study))
    if confirm_seeds:
        with ConfirmView(console, keep=keep) if console else nullcontext() as confirm_view:
            update = confirm_view.update if confirm_view else None
            confirm(study, confirm_best, confirm_seeds, workers, update)


def _call_all(watchers: Sequence[Watcher], study: TuneStudy) -> None:
    for watcher in watchers:
        watcher(study)


def prepare_study(
    env: str | EnvFactory | None = None,
    *,
    study: str | None = None,
    new_study: bool = False,
    space: str | Path | Mapping[str, Any] | None = None,
    grid: Grid = (),
    hparams: Hparams | None = None,
    settings: Mapping[str, Any] | None = None,
    root: str | Path = "runs",
    **options: Any,
) -> TuneStudy:
    """Check everything, and begin a study or go on with it; no trial is run.

    Args:
        env: see `tune`.
        study: its name; one that exists goes on, as it was searched so far where nothing else is said. One that does
            not exist begins, but not if there is one of a similar name: that may have been meant. None: a new one.
        new_study: whether it has to be a new one, whatever others are called.
        space: what is chosen: a file, or the same as a mapping; None: as shipped for the algorithm.
        grid: exactly these values by name, instead of a space; as mapping, or as texts `name=a,b,c`.
        hparams: a file of settings by env id, or the same as a mapping, instead of the shipped preset. Its section for
            the env is kept in the study.
        settings: what is set in every trial, by keys as after `--set`; it is not searched then.
        root: the folder below which studies are kept, in `tune/<env>/<name>`.
        options: the other fields of `Search`; None means not given.

    Raises:
        ConfigError: a setting is wrong; nothing has been run then.
    """
    name = new_name() if study is None else study
    if not _is_folder_name(name):
        raise ConfigError(f"--study is {name!r}; accepted: a name that can be a folder's", key="study")
    factory = None if env is None or isinstance(env, str) else env
    named = env if env is None or isinstance(env, str) else factory_id(env)
    env_id = named or _env_of(name, Path(root), options.get("storage"))
    notes: list[str] = []
    entry = None
    if hparams is not None:
        env_id, _, entry = entry_of(hparams, env_id, notes)
        require_named(env_id, [] if named is None else [named], "hparams" if isinstance(hparams, Mapping) else hparams)
    env_id = env_id or DEFAULT_ENV
    folder = study_folder(env_id, name, Path(root))
    given = {key: as_integer(value) for key, value in options.items() if value is not None}
    if entry is not None:
        given["hparams"] = {env_id: plain_data(entry)}
    if settings:
        given["settings"] = {key: value for key, (_, value) in canonical_settings(settings).items()}
    before = read_search(folder, env_id, given.get("storage"))
    if study is not None:
        _require_meant(name, folder, named, new_study)
    search = _new(env_id, name, space, grid, given) if before is None else _continued(before, space, grid, given)
    for note in notes:
        _log.warning("%s", note)
    return open_study(search, folder, factory, _where(space, grid))


def _where(space: str | Path | Mapping[str, Any] | None, grid: Grid) -> str:
    """What parameters are chosen from, as what stands before their names in messages."""
    if grid:
        return "--grid "
    return f"{space}, " if isinstance(space, (str, Path)) else "the space, "


def _require_meant(name: str, folder: Path, env: str | None, new_study: bool) -> None:
    """Refuse to begin a study where another is likely to be meant, or to go on where a new one is.

    Raises:
        ConfigError: with what to do.
    """
    if (folder / "study.yaml").is_file():
        if new_study:
            words = f"study {name!r} exists in {folder}; accepted with --new-study: another name"
            raise ConfigError(words, key="study")
        return
    parents = folder.parent.parent.glob("*") if env is None else [folder.parent]
    others = sorted({file.parent.name for parent in parents for file in parent.glob("*/study.yaml")})
    # Numbers tell studies apart that belong together: lr-1, lr-2.
    others = [other for other in others if _without_digits(other) != _without_digits(name)]
    close = difflib.get_close_matches(name, others, n=3, cutoff=_SIMILAR)
    if close and not new_study:
        raise ConfigError(
            f"there is no study {name!r}; did you mean {', '.join(close)}? To begin a new one, add --new-study (in "
            "Python, new_study=True)",
            key="study",
        )


def _without_digits(name: str) -> str:
    return "".join(c for c in name if not c.isdigit())


def _new(
    env: str, name: str, space: str | Path | Mapping[str, Any] | None, grid: Grid, given: Mapping[str, Any]
) -> Search:
    chosen = _space(env, given.get("algo"), space, grid, _set_in_every_trial(given))
    usual: dict[str, Any] = {"sampler": "grid"} if grid else {}
    search = Search(env, chosen, name, **{**usual, **given})
    if search.sampler == "grid":
        pruner = given.get("pruner", "none")  # who asks for exactly these wants to see them all to their end
        search = replace(search, trials=_all_of_grid(chosen.combinations(), given), pruner=pruner)
    return search if "evaluations" in given else search.with_fitting_evaluations()


def _continued(
    before: Search, space: str | Path | Mapping[str, Any] | None, grid: Grid, given: Mapping[str, Any]
) -> Search:
    """What was searched before, but for what is said now: whether that is the same is checked when it is opened."""
    search = replace(before, **given)
    if space is not None or grid:
        chosen = _space(search.env, search.algo, space, grid, _set_in_every_trial(search.to_plain()))
        sampler = given.get("sampler", "grid" if grid else before.sampler)
        search = replace(search, space=chosen, sampler=sampler)
    return replace(search, trials=_all_of_grid(before.trials, given)) if search.sampler == "grid" else search


def _set_in_every_trial(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the fields of a search set, by keys as after `--set`."""
    named = {name: fields.get(name) for name in ("n_envs", "vectorizer", "device")}
    return {**fields.get("settings", {}), **{name: value for name, value in named.items() if value is not None}}


def _all_of_grid(combinations: int, given: Mapping[str, Any]) -> int:
    """How many trials a grid has.

    Raises:
        ConfigError: another number is wanted.
    """
    if given.get("trials", combinations) != combinations:
        raise ConfigError(f"--trials is {given['trials']}, but the grid has {combinations}", key="trials")
    return combinations


def _is_folder_name(name: object) -> bool:
    if not isinstance(name, str) or not name.isprintable() or any(c in name for c in "/\\"):
        return False
    return 0 < len(name.encode()) <= _LONGEST_NAME and not name.startswith(".")


def _env_of(name: str, root: Path, storage: str | None) -> str | None:
    """The env of the study of this name, if there is one.

    Raises:
        ConfigError: there are several, or the file is not that of a study.
    """
    files = sorted((root / "tune").glob(f"*/{escape(name)}/study.yaml"))
    if len(files) > 1:
        envs = ", ".join(file.parent.parent.name for file in files)
        raise ConfigError(f"there are studies {name!r} of {envs}: name the env", key="env")
    search = read_search(files[0].parent, storage=storage) if files else None
    return None if search is None else search.env


def _space(
    env: str,
    algo: str | None,
    space: str | Path | Mapping[str, Any] | None,
    grid: Grid,
    settings: Mapping[str, Any],
) -> Space:
    if space is not None and not isinstance(space, (str, Path, Mapping)):
        raise ConfigError(f"space is {space!r}; accepted: a file, or a mapping of parameters to ranges", key="space")
    if grid and space is not None:
        raise ConfigError("a space and a grid are given; accepted: one of them", key="grid")
    if grid:
        chosen = _parsed_grid(grid)
    elif isinstance(space, Mapping):
        chosen = parse_space(space, "space")
    else:
        chosen = read_space(env, algo or TrainConfig.algo, space)
    both = {parameter.name for parameter in chosen.parameters} & set(settings)
    if both and (grid or space is not None):
        raise ConfigError(f"{', '.join(sorted(both))} is both set and searched; accepted: one of them", key="space")
    return chosen.without(settings)


def _parsed_grid(grid: Grid) -> Space:
    if not isinstance(grid, Mapping):
        return parse_grid(grid)
    for name, values in grid.items():
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise ConfigError(f"grid, {name}: is {values!r}; accepted: a list of values", key="grid")
    return parse_space({name: {"choices": list(values)} for name, values in grid.items()}, "grid")
