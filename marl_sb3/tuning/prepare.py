"""Check the options of a search, and start its study or continue it."""

from __future__ import annotations

import difflib
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import Any, Unpack

from marl_sb3.config import Hparams, TrainConfig, entry_of, plain_data, require_named
from marl_sb3.config.settings import as_integer, canonical_settings, require_kinds
from marl_sb3.config.values import Named, plain_numbers, require
from marl_sb3.envs.registry import EnvFactory, factory_id
from marl_sb3.errors import ConfigError, as_path, path_is_usable
from marl_sb3.learners.registry import named_algorithm
from marl_sb3.tuning.checks import check_search
from marl_sb3.tuning.jobs.workers import study_lock
from marl_sb3.tuning.options import SearchOptions, require_options, takes_search_options
from marl_sb3.tuning.search import Search, read_search
from marl_sb3.tuning.space import Grid, Space, SpaceSource, parse_grid, parse_space, read_space
from marl_sb3.tuning.study import TuneStudy

DEFAULT_ENV = "arena"
_MAX_NAME = 200  # bytes in the name of a study
_SIMILAR = 0.7  # difflib's ratio from which on a name may be a typo for another

_log = logging.getLogger(__name__)


@takes_search_options
def prepare_study(env: str | EnvFactory | None = None, **options: Unpack[SearchOptions]) -> TuneStudy:
    """Check all options, and start a study or continue it; no trial is run.

    Args:
        env: an env id, or a factory of a `ParallelEnv`; None: the arena, or the study's env.
        options: those of `SearchOptions`.

    Raises:
        ConfigError: an option is wrong; no trial was run.
    """
    require_options("prepare_study", [*options])
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return _prepared(env, **{**given, "root": as_path("root", given.get("root", "runs"))})


def _prepared(
    env: str | EnvFactory | None,
    root: Path,
    study: str | None = None,
    new_study: bool = False,
    space: SpaceSource = None,
    grid: Grid = (),
    hparams: Hparams | None = None,
    settings: Mapping[str, Any] | None = None,
    stop: Mapping[str, float] | None = None,
    **options: Any,
) -> TuneStudy:
    """See `prepare_study`; the other options are fields of `Search`."""
    require_kinds(hparams, settings)
    if stop is not None:
        require("stop", stop, Named)
    name = _new_name() if study is None else study
    if not _is_folder_name(name):
        words = f"a printable name of at most {_MAX_NAME} bytes without / and \\ that does not start with a dot"
        raise ConfigError(f"--study is {name!r}; accepted: {words}", key="study")
    factory = None if env is None or isinstance(env, str) else env
    named = env if env is None or isinstance(env, str) else factory_id(env)
    env_id = named or _env_of(name, root, options.get("storage"))
    notes: list[str] = []
    entry = None
    if hparams is not None:
        env_id, _, entry = entry_of(hparams, env_id, notes)
        require_named(env_id, [] if named is None else [named], "hparams" if isinstance(hparams, Mapping) else hparams)
    env_id = env_id or DEFAULT_ENV
    folder = study_folder(env_id, name, root)
    given = {key: as_integer(plain_numbers(value)) for key, value in options.items()}
    if "algo" in given:
        given["algo"] = named_algorithm(given["algo"])
    if entry is not None:
        given["hparams"] = {env_id: plain_data(entry)}
    settings = {**(settings or {}), **{f"stop.{metric}": value for metric, value in (stop or {}).items()}}
    if settings:
        given["settings"] = {key: value for key, (_, value) in canonical_settings(settings).items()}
    before = read_search(folder, env_id, given.get("storage"))
    if study is not None:
        _require_meant(name, folder, named, new_study)
    search = _new(env_id, name, space, grid, given) if before is None else _continued(before, space, grid, given)
    for note in notes:
        _log.warning("%s", note)
    _require_same(before, search, folder)
    return _open(search, folder, factory, _where(space, grid), is_continued=before is not None)


def study_folder(env: str, name: str, root: Path = Path("runs")) -> Path:
    """The folder of a study: `runs/tune/<env>/<name>`."""
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in env)
    return root / "tune" / safe / name


def _new_name() -> str:
    """UTC time and 4 hex digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _require_same(before: Search | None, search: Search, folder: Path) -> None:
    """Refuse to continue a study with options that make its trials incomparable."""
    if before is not None and (other := before.differences(search)):
        raise ConfigError(
            f"study {search.name!r} exists with other values of {', '.join(other)}; accepted: another --study name, or "
            f"what {folder / 'study.yaml'} says",
            key="study",
        )


def _open(search: Search, folder: Path, factory: EnvFactory | None, where: str, *, is_continued: bool) -> TuneStudy:
    """Check a search, and start its study or continue it."""
    warnings = check_search(search, factory, where)
    with path_is_usable("cannot write to the study folder", folder, "root"):
        folder.mkdir(parents=True, exist_ok=True)
    with study_lock(folder):
        study = TuneStudy(search, folder, factory)
        study.continued = is_continued or bool(study.trials)
        study.begin()
        search.write(folder)
    for warning in warnings:
        _log.warning("%s", warning)
    return study


def _where(space: SpaceSource, grid: Grid) -> str:
    """The origin of the space, put before the names of parameters in messages."""
    if grid:
        return "--grid "
    return f"{space}, " if isinstance(space, (str, Path)) else "the space, "


def _require_meant(name: str, folder: Path, env: str | None, new_study: bool) -> None:
    """Refuse a new study whose name is probably a typo, and an existing one with `new_study`."""
    if (folder / "study.yaml").is_file():
        if new_study:
            words = f"study {name!r} exists in {folder}; accepted with --new-study: another name"
            raise ConfigError(words, key="study")
        return
    parents = folder.parent.parent.glob("*") if env is None else [folder.parent]
    others = sorted({file.parent.name for parent in parents for file in parent.glob("*/study.yaml")})
    # Names that differ in digits only are no typos: lr-1, lr-2.
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


def _new(env: str, name: str, space: SpaceSource, grid: Grid, given: Mapping[str, Any]) -> Search:
    chosen = _space(env, given.get("algo"), space, grid, _set_in_every_trial(given))
    defaults: dict[str, Any] = {"sampler": "grid"} if grid else {}
    search = Search(env, chosen, name, **{**defaults, **given})
    if search.sampler == "grid":
        pruner = given.get("pruner", "none")  # with a grid, all results are wanted
        search = replace(search, trials=_all_of_grid(chosen.combinations(), given), pruner=pruner)
    return search if "evaluations" in given else search.with_fitting_evaluations()


def _continued(before: Search, space: SpaceSource, grid: Grid, given: Mapping[str, Any]) -> Search:
    """The search of an existing study with the options given now; `_open` refuses incompatible ones."""
    search = replace(before, **given)
    if space is not None or grid:
        chosen = _space(search.env, search.algo, space, grid, _set_in_every_trial(search.to_plain()))
        sampler = given.get("sampler", "grid" if grid else before.sampler)
        search = replace(search, space=chosen, sampler=sampler)
    return replace(search, trials=_all_of_grid(before.trials, given)) if search.sampler == "grid" else search


def _set_in_every_trial(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the fields of a search make for every trial, by keys as after `--set`."""
    named = {name: fields.get(name) for name in ("n_envs", "vectorizer", "device")}
    return {**fields.get("settings", {}), **{name: value for name, value in named.items() if value is not None}}


def _all_of_grid(combinations: int, given: Mapping[str, Any]) -> int:
    """The number of trials of a grid."""
    if given.get("trials", combinations) != combinations:
        raise ConfigError(f"--trials is {given['trials']}, but the grid has {combinations}", key="trials")
    return combinations


def _is_folder_name(name: object) -> bool:
    if not isinstance(name, str) or not name.isprintable() or any(c in name for c in "/\\"):
        return False
    return 0 < len(name.encode()) <= _MAX_NAME and not name.startswith(".")


def _env_of(name: str, root: Path, storage: str | None) -> str | None:
    """The env of the study with this name; None if there is no such study."""
    files = sorted((root / "tune").glob(f"*/{escape(name)}/study.yaml"))
    if len(files) > 1:
        envs = ", ".join(file.parent.parent.name for file in files)
        raise ConfigError(f"there are studies {name!r} of {envs}: name the env", key="env")
    search = read_search(files[0].parent, storage=storage) if files else None
    return None if search is None else search.env


def _space(
    env: str,
    algo: str | None,
    space: SpaceSource,
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
    plain: Mapping[str, Any] = plain_numbers(grid)
    for name, values in plain.items():
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise ConfigError(f"grid, {name}: is {values!r}; accepted: a list of values", key="grid")
    return parse_space({name: {"choices": list(values)} for name, values in plain.items()}, "grid")
