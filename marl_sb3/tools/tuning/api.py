"""A search as functions of the library: `marl_sb3.tune(...)`, and `prepare_study`, which runs no trial."""

from __future__ import annotations

import difflib
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import Any, Unpack

from rich.console import Console

from marl_sb3.core.config.values import Count, Named, PositiveInt, plain_numbers, require
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.learners.spec import named_algorithm
from marl_sb3.envs.finding import factory_id
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.extensions.dialects.names import as_integer, canonical_settings
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.remote.ray import RaySettings
from marl_sb3.files.paths import as_path, folder_name, path_is_usable, require_file_name, require_text
from marl_sb3.files.plain_yaml import plain_data
from marl_sb3.runs.building import build, check_device, resolved, source_named
from marl_sb3.runs.files import entry_of, require_named
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.resume import CHANGEABLE
from marl_sb3.runs.run import Run
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.settings import require_kinds, require_trusted
from marl_sb3.runs.start import metric_names, require_metrics
from marl_sb3.startup import start_without_dynamo
from marl_sb3.tools.tuning.finals import plan_race, race_size
from marl_sb3.tools.tuning.options import SearchOptions, takes_search_options
from marl_sb3.tools.tuning.population import require_one_folder
from marl_sb3.tools.tuning.report import write_files
from marl_sb3.tools.tuning.search import OF_THE_SEARCH, Search, read_search, rollout_steps
from marl_sb3.tools.tuning.space import Grid, Space, SpaceSource, parse_grid, parse_space, read_space
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trials import Watcher, run_finals, run_trials
from marl_sb3.tools.tuning.view import SearchView
from marl_sb3.tools.tuning.workers import study_lock
from marl_sb3.types import PolicyID

DEFAULT_ENV = "arena"
_SIMILAR = 0.7  # difflib's ratio from which on a name may be a typo for another

_log = logging.getLogger(__name__)


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


# --- The study --------------------------------------------------------------------------------------------------------


@takes_search_options
def prepare_study(env: str | EnvFactory | None = None, **options: Unpack[SearchOptions]) -> TuneStudy:
    """Check all options, and start a study or continue it; no trial is run.

    Args:
        env: an env id, or a factory of a `ParallelEnv`; None: the arena, or the study's env.
        options: those of `SearchOptions`.

    Raises:
        ConfigError: an option is wrong; no trial was run.
    """
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    root = as_path("root", given.pop("root", "runs"))
    study, new_study = given.pop("study", None), given.pop("new_study", False)
    space, grid = given.pop("space", None), given.pop("grid", ())
    named, factory = (env, None) if env is None or isinstance(env, str) else (factory_id(env), env)
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}" if study is None else study
    require_file_name("--study", name, "study")
    notes: list[str] = []
    env_id, given = _fields(named or _env_of(name, root, given.get("storage")), named, given, notes)
    folder = study_folder(env_id, name, root)
    require_text("the study folder", folder.absolute(), "root")
    before = read_search(folder, env_id, given.get("storage"))
    if study is not None:
        _require_meant(name, folder, named, new_study)
    fields = {"env": env_id, "name": name, **given}
    search = search_of(before, fields, space, grid)
    if before is None and search.hparams is None and (picked := _picked_rollouts(search, factory)) is not None:
        search = search_of(None, {**fields, "hparams": picked}, space, grid)
    config = search.config({})
    require_trusted(config.code(), config.sources, given.get("settings") or ())
    for note in notes:
        _log.warning("%s", note)
    if before is not None:
        _require_same(before, search, folder)
    where = "--grid " if grid else f"{space}, " if isinstance(space, (str, Path)) else "the space, "
    warnings = _check_trials(search, factory, where)
    if before is None and space is None and not grid:
        warnings.clear()  # the user has not chosen these values
    if search.sampler != "grid" and (missing := search.space.missing(search.preset())):
        warnings.append(f"the space does not contain the preset: {missing}; no trial has its settings")
    with path_is_usable("cannot write to the study folder", folder, "root"):
        folder.mkdir(parents=True, exist_ok=True)
    with study_lock(folder):
        opened = TuneStudy(search, folder, factory)
        opened.continued = before is not None or bool(opened.trials)
        opened.begin()
        if search.is_population:
            require_one_folder(opened)
        search.write(folder)
    for warning in warnings:
        _log.warning("%s", warning)
    return opened


def study_folder(env: str, name: str, root: Path = Path("runs")) -> Path:
    """The folder of a study: `runs/tune/<env>/<name>`."""
    each = re.sub(r"[^\w.-]", "_", env)  # one by one: the folders of studies that exist
    return root / "tune" / folder_name(each) / name


def _env_of(name: str, root: Path, storage: str | None) -> str | None:
    """The env of the study with this name; None if there is no such study."""
    files = sorted((root / "tune").glob(f"*/{escape(name)}/study.yaml"))
    if len(files) > 1:
        envs = ", ".join(file.parent.parent.name for file in files)
        raise ConfigError(f"there are studies {name!r} of {envs}: name the env", key="env")
    search = read_search(files[0].parent, storage=storage) if files else None
    return None if search is None else search.env


def _fields(
    env: str | None, named: str | None, options: Mapping[str, Any], notes: list[str]
) -> tuple[str, dict[str, Any]]:
    """The env and the fields of `Search` that the options give; `notes` gets what the user should know of the choice.

    Args:
        env: the env, if it is known, which is `named` if the user has named one.
    """
    given = dict(options)
    hparams, settings, stop = (given.pop(name, None) for name in ("hparams", "settings", "stop"))
    require_kinds(hparams, settings)
    if stop is not None:
        require("stop", stop, Named)
    fields = {key: as_integer(plain_numbers(value)) for key, value in given.items()}
    if hparams is not None:
        env, _, entry = entry_of(hparams, env, notes)
        require_named(env, [] if named is None else [named], "hparams" if isinstance(hparams, Mapping) else hparams)
        fields["hparams"] = {env: plain_data(entry)}
    if "algo" in fields:
        fields["algo"] = named_algorithm(fields["algo"])
    settings = {**(settings or {}), **{f"stop.{metric}": value for metric, value in (stop or {}).items()}}
    if settings:
        fields["settings"] = {key: value for key, (_, value) in canonical_settings(settings).items()}
    return env or DEFAULT_ENV, fields


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
    others = [other for other in others if re.sub(r"\d", "", other) != re.sub(r"\d", "", name)]
    close = difflib.get_close_matches(name, others, n=3, cutoff=_SIMILAR)
    if close and not new_study:
        raise ConfigError(
            f"there is no study {name!r}; did you mean {', '.join(close)}? To begin a new one, add --new-study (in "
            "Python, new_study=True)",
            key="study",
        )


def search_of(before: Search | None, given: Mapping[str, Any], space: SpaceSource, grid: Grid) -> Search:
    """The search of a new study, or that of an existing one, `before`, with the fields and the space given now."""
    fields = {**({} if before is None else vars(before)), **given}
    if before is not None:
        fields["settings"] = {**before.settings, **given.get("settings", {})}
    if before is None or space is not None or grid:
        fields["space"] = _space(fields, space, grid)
        if grid:
            fields["sampler"] = given.get("sampler", "grid")
    # Optuna prunes no trial with several objectives, members copy better ones, and all results of a grid are wanted.
    if "," in str(fields.get("objective")) or fields.get("sampler") in ("pbt", "grid"):
        fields.setdefault("pruner", "none")
    if fields.get("sampler") == "pbt":
        fields.setdefault("trials", 8)
    if fields.get("sampler") == "grid":
        fields["trials"] = combinations = fields["space"].combinations()
        if given.get("trials", combinations) != combinations:
            raise ConfigError(f"--trials is {given['trials']}, but the grid has {combinations}", key="trials")
    search = Search(**fields)
    if before is None:
        search.require_not_set(OF_THE_SEARCH)
    if search.is_population and before is None:
        search = replace(search, space=_changeable(search.space, is_given=space is not None or bool(grid)))
    if before is None and space is None and not grid:  # what the user gives is taken as it stands
        preset = search.preset()
        longest = (search.timesteps or preset.n_timesteps) // search.evaluations
        search = replace(search, space=search.space.following(preset).containing(preset, longest))
    if "evaluations" not in fields:  # at most as many as the shortest trial has rollouts, and at least one
        configs = [search.config(settings, n_timesteps=search.timesteps) for settings in search.space.corners()]
        fitting = min(config.n_timesteps // rollout_steps(config) for config in configs)
        search = replace(search, evaluations=max(1, min(search.evaluations, fitting)))
    if "over" in fields:
        return search
    return replace(search, over=f"mean_of_last_{min(3, search.evaluations)}" if search.evaluations > 1 else "last")


def _changeable(space: Space, *, is_given: bool) -> Space:
    """The space of a population, without settings that a run cannot change as it goes on.

    Raises:
        ConfigError: it has such settings, and is that of the user.
    """
    fixed = [
        parameter.name
        for parameter in space.parameters
        if (own := parameter.name.rpartition(".")[2]) not in CHANGEABLE
        or parameter.name.rpartition(".")[0].endswith("policy_kwargs")
        or (own == "ent_coef" and any(isinstance(bound, str) for bound in parameter.bounds))  # learned: part of a state
    ]
    if fixed and is_given:
        words = f"{', '.join(fixed)} cannot change in a run that goes on: weights and optimizers are copied as they are"
        accepted = f"accepted with --sampler pbt: {', '.join(sorted(CHANGEABLE))}; set others for all, with --set"
        raise ConfigError(f"{words}; {accepted}", key="space")
    return space.without(fixed) if fixed else space


def _picked_rollouts(search: Search, factory: EnvFactory | None) -> dict[str, Any] | None:
    """Settings of rollouts and policies that `train` would pick in an env without a preset; None: it picks none."""
    config = search.config({}, picks_rollouts=True)
    if not config.picks_rollouts:
        return None
    with _built(config, factory) as run:
        picked = run.config
    names = [*(["n_steps"] if picked.picks_rollouts else []), "policy", "policy_kwargs"]
    own = {each: {name: its[name] for name in names if name in its} for each, its in picked.policy_settings.items()}
    entry = {name: picked.hyperparameters[name] for name in names[:-2] if name in picked.hyperparameters}
    entry |= {} if picked.policy == "MlpPolicy" else {"policy": picked.policy}
    entry |= {"policy_settings": own} if any(own.values()) else {}
    return {search.env: entry} if entry else None


def _require_same(before: Search, search: Search, folder: Path) -> None:
    """Refuse to continue a study with options that make its trials incomparable."""

    def options(each: Search) -> dict[str, Any]:
        own = {f"--set {key}": value for key, value in each.settings.items()}
        return {**each.to_plain(), "settings": None, "trials": None, **own}

    had, has = options(before), options(search)
    if before.is_population and before.trials != search.trials:
        had["trials"], has["trials"] = before.trials, search.trials  # members that are missing in former generations
    if other := [name for name, value in has.items() if name not in had or had[name] != value]:
        raise ConfigError(
            f"study {search.name!r} exists with other values of {', '.join(other)}; accepted: another --study name, or "
            f"what {folder / 'study.yaml'} says",
            key="study",
        )


def _space(fields: Mapping[str, Any], space: SpaceSource, grid: Grid) -> Space:
    """The space to search, without what the other fields of the search set in every trial."""
    if space is not None and not isinstance(space, (str, Path, Mapping)):
        refuse("space", space, "a file, or a mapping of parameters to ranges")
    if grid and space is not None:
        raise ConfigError("a space and a grid are given; accepted: one of them", key="grid")
    if grid:
        chosen = parse_grid(grid)
    elif isinstance(space, Mapping):
        chosen = parse_space(space, "space")
    else:
        chosen = read_space(fields["env"], fields.get("algo") or TrainConfig.algo, space)
    one_by_one = [
        name for name in ("algo", "policies", "n_envs", "vectorizer", "device") if fields.get(name) is not None
    ]
    set_for_all = {*fields.get("settings", {}), *one_by_one, *(["n_timesteps"] if fields.get("timesteps") else [])}
    both = chosen.names & set_for_all
    if both and (grid or space is not None):
        raise ConfigError(f"{', '.join(sorted(both))} is both set and searched; accepted: one of them", key="space")
    return chosen.without(set_for_all)


# --- Trials that are built and not run --------------------------------------------------------------------------------

# Keys of errors that do not depend on what a trial tries, unless it is searched.
_OF_ALL_TRIALS = frozenset({"env", "algo", "policies", "device", "vectorizer", "objective", "stop"})

# By policy and the agent steps of its rollouts: sizes of minibatches that do not divide these.
_Uneven = dict[tuple[PolicyID, int], set[int]]


def _check_trials(search: Search, factory: EnvFactory | None, where: str) -> list[str]:
    """Build trials at the ends of all ranges without running them; returns warnings for the user.

    Args:
        where: the origin of the space, put before the names of parameters in messages.
    """
    space, objectives = search.space, search.objectives()
    if objectives[0].n_last > search.evaluations:  # all of them are over the same evaluations
        words = f"--over is {search.over!r}, but a trial has {search.evaluations} evaluations"
        raise ConfigError(words, key="over")
    searches_batch_size = any(parameter.name.rpartition(".")[2] == "batch_size" for parameter in space.parameters)
    uneven: _Uneven = {}
    for settings in space.corners():
        config = search.trial_config(settings, 0, where)
        try:
            with _built(config, factory) as run:
                for objective in objectives:
                    objective.require_known(metric_names(run))
                _check_minibatches(run, uneven, searches_batch_size=searches_batch_size)
        except ConfigError as error:
            if error.key in _OF_ALL_TRIALS - space.names:
                raise
            shown = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise ConfigError(f"{error} (in a trial with {shown})", key=error.key) from error
    return [
        f"policy {policy_id}: the last minibatch of an epoch is smaller where batch_size is "
        f"{', '.join(map(str, sorted(sizes)))}: a rollout has {rollout} agent steps"
        for (policy_id, rollout), sizes in uneven.items()
    ]


def require_trainable_preset(study: TuneStudy) -> None:
    """Refuse a search with finalists whose preset cannot be trained."""
    try:
        with _built(study.search.final_config({}, 0), study.factory):
            pass
    except ConfigError as error:
        raise ConfigError(f"the preset: {error} (--no-confirm searches without it)", key=error.key) from error


@contextmanager
def _built(config: TrainConfig, factory: EnvFactory | None) -> Iterator[Run]:
    """Build a run to check its settings; it is not started."""
    config = resolved(config)
    with source_named(config.where):
        check_device(config.device)
    start_without_dynamo()
    run = Run(RunFolder(Path()), *build(config, factory), factory=factory)
    try:
        require_metrics(run)
        yield run
    finally:
        run.close()


def _check_minibatches(run: Run, uneven: _Uneven, *, searches_batch_size: bool) -> None:
    """Refuse to search minibatches larger than the rollout, which train the same; note those that do not divide it."""
    policies: Mapping[PolicyID, Any] = run.algorithm.policies
    for policy_id, policy in policies.items():
        if not all(hasattr(policy, name) for name in ("batch_size", "n_steps", "rollout_buffer")):
            continue
        size, rollout = policy.batch_size, policy.n_steps * policy.n_envs
        if size > rollout and searches_batch_size:
            words = f"policy {policy_id!r}: batch_size is {size}, larger than its rollout of {rollout} agent steps"
            raise ConfigError(f"{words}; accepted in a search: 2 to {rollout}", key="batch_size")
        if size < rollout and rollout % size:
            uneven.setdefault((policy_id, rollout), set()).add(size)
