"""Start a run: anew, from its newest checkpoint, or from there again after an error."""

from __future__ import annotations

import json
import logging
import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed

from marl_sb3.callbacks import CurriculumCallback, EvaluationCallback, RecordEpisodes
from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.core.config.values import counted
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.learners.spec import resolve_hyperparameters
from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.training.accepted import accepted_callbacks
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
from marl_sb3.core.vec_env.seeding import Stream, spawned
from marl_sb3.envs.finding import attribute_from_here
from marl_sb3.errors import ConfigError, NumericError, described, shown
from marl_sb3.extensions.dialects.names import require_logged
from marl_sb3.extensions.hub import is_address, pinned
from marl_sb3.extensions.remote.ray import AnyRunners
from marl_sb3.extensions.store.checkpoint_folder import RUN_CONFIG
from marl_sb3.extensions.transfer.initial_weights import init_from as start_from
from marl_sb3.extensions.transfer.initial_weights import parse_init_from
from marl_sb3.files.atomic import remove_unfinished, write_whole
from marl_sb3.files.paths import path_is_usable, require_text
from marl_sb3.files.plain_yaml import parse_value
from marl_sb3.files.regular import read_regular, require_own
from marl_sb3.league.league import League
from marl_sb3.runs.building import build, policy_spec, resolved, set_up_process, source_named, with_shards
from marl_sb3.runs.files import to_yaml
from marl_sb3.runs.folder import IMITATION_FILE, WRITTEN, RunFolder, find_run, undone_on_error
from marl_sb3.runs.logs import truncate_logs
from marl_sb3.runs.resume import Phase, changes_between, config_in, continued, is_complete, phases_after
from marl_sb3.runs.run import Run
from marl_sb3.runs.schema import TrainConfig, name_of_callback, value_of
from marl_sb3.runs.settings import load_config, require_trusted, with_arguments
from marl_sb3.runs.tracking import require_trackers

_log = logging.getLogger(__name__)

MAX_ROLLBACKS = 3
CLONING = "cloning"  # the part of a checkpoint's state that `runs.imitate` goes on from; none if the cloning is done


# Makes the callback that records the episodes of a run: `RecordEpisodes` with its folder and its limit.
Recording = Callable[..., RecordEpisodes]


# --- Anew -------------------------------------------------------------------------------------------------------------


def prepare(
    config: TrainConfig,
    run_dir: str | Path | None = None,
    factory: EnvFactory | None = None,
    *,
    trust_pickle: bool = False,
    runners: AnyRunners | None = None,
    record: Recording | None = None,
    makes_folder: bool = True,
) -> Run:
    """Build everything, check everything, then make the run folder.

    Args:
        config: the configuration; a missing seed is drawn.
        run_dir: the folder; it must be empty or not exist. None: `runs/<env>/<UTC time>-<4 hex>`.
        factory: makes the env, if the id in the configuration is only its name.
        trust_pickle: allow SB3 zips in `init_from`. It is not a setting, so that no file can allow it.
        runners: which processes roll out the shards; None: this one.
        record: makes the callback that records episodes; None: they are not recorded.
        makes_folder: False: nothing is written.

    Raises:
        ConfigError: a setting does not fit; nothing has been written then.
        CheckpointError: a checkpoint in `init_from` is damaged, or there is none.
    """
    require_trusted(config.code(), config.sources)
    with source_named(config.where, "track"):
        require_trackers(config.track)
    files = RunFolder.new(config.env, run_dir)
    recorder = None if record is None else record(name=config.env)
    record_dir = None if recorder is None else recorder.directory
    if record_dir is not None and Path(os.path.realpath(record_dir)).is_relative_to(os.path.realpath(files.path)):
        words = f"--record is {record_dir}, which would fill the folder of --run-dir, {files.shown}"
        raise ConfigError(f"{words}, before the run begins; accepted: a folder outside of it", key="record")
    config = resolved(config if runners is None else with_shards(config))
    if any(map(is_address, config.league.opponents or ())):
        with source_named(config.where, "league.opponents"):
            found = [pinned(each) if is_address(each) else each for each in config.league.opponents or ()]
        config = replace(config, league=replace(config.league, opponents=found))
    if config.init_from is not None:
        with source_named(config.where, "init_from"):
            config = replace(config, init_from=list(map(_found_source, config.init_from)))
    for note in config.notes:
        _log.warning("%s", note)
    with source_named(config.where):
        set_up_process(config.device, config.n_threads)
    config, algorithm, phase = _build(config, 0, factory, runners)
    run = Run(files, config, algorithm, factory=factory, recorder=recorder, runners=runners, settings=phase.settings)
    with undone_on_error(run.close):
        require_metrics(run)
        with source_named(config.where, "callbacks"):
            run.callbacks = named_callbacks(config.callbacks)
        with source_named(config.where, "curriculum"):
            for curriculum in curricula_of(run):
                curriculum.move(algorithm.env)
        with source_named(config.where, "init_from"):
            sources = [parse_init_from(text) for text in config.init_from or ()]
            run.started_from = start_from(algorithm, sources, config.init_layers, trust_pickle=trust_pickle)
        if recorder is not None:
            recorder.open(algorithm)
        with source_named(config.where):
            algorithm.read_data()
            algorithm.start_runners()
        to_yaml(config)  # raises for a value that a file cannot hold
        if makes_folder:
            files.make(config)
    return run


def _build(
    config: TrainConfig, env_steps: int, factory: EnvFactory | None, runners: AnyRunners | None
) -> tuple[TrainConfig, MultiAgentAlgorithm, Phase]:
    """Build envs and policies as `build` does, with the settings of the phase after so many env steps.

    Raises:
        ConfigError: a setting does not fit, or one of a phase cannot change in a run.
    """
    phases = phases_after(env_steps, config.n_timesteps, config.extensions)
    for each in phases:
        if each.settings:
            with source_named(config.where, "extensions"):
                changed = config_in(config, each)
                changes_between(config, changed)
                for policy_id in changed.own_settings:
                    policy_spec(changed, policy_id)
                resolve_hyperparameters(algorithm_info(config.algo).algorithm_class, changed.hyperparameters)
    phase = phases[0]
    if not phase.settings:
        return *build(config, factory, runners), phase
    return config, build(config_in(config, phase), factory, runners)[1], phase


def enter(run: Run, phase: Phase) -> None:
    """Let a run go on with the settings of its next phase, from the checkpoint with which the last one has ended.

    Envs and policies are made anew, as if the run was resumed; `Run.algorithm` is another one then.
    """
    if run.settings == phase.settings:
        return
    checkpoint = run.files.checkpoints.load("latest")
    run.algorithm.env.close()
    run.algorithm = build(config_in(run.config, phase), run.factory, run.runners)[1]
    run.settings = phase.settings
    with source_named(run.config.where):
        run.algorithm.read_data()
        run.algorithm.start_runners()
    _restore(run, checkpoint)


def resolve(config: TrainConfig, *, trust_pickle: bool = False, runners: AnyRunners | None = None) -> TrainConfig:
    """Return the configuration that a run would have, with all defaults; everything is checked as in `prepare`."""
    with closing(prepare(config, trust_pickle=trust_pickle, runners=runners, makes_folder=False)) as run:
        return run.config


def _found_source(text: str) -> str:
    """Name a source of `init_from` so that it stays the same: the newest run of a folder, the newest commit on the Hub.

    Later, another may be the newest.
    """
    source = parse_init_from(text)
    if is_address(source.path):
        return str(replace(source, path=Path(pinned(source.path))))
    has_run = any((source.path / name).exists() for name in ("manifest.json", "checkpoints"))
    return str(source if has_run or not source.path.is_dir() else replace(source, path=find_run(source.path)))


# --- From its newest checkpoint ---------------------------------------------------------------------------------------


def resume_run(
    run_folder: str | Path,
    timesteps: int | None = None,
    env: str | None = None,
    factory: EnvFactory | None = None,
    runners: AnyRunners | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[str] = (),
    record: Recording | None = None,
    cloning: bool = False,
    **changes: Any,
) -> Run:
    """Restore a run from its newest checkpoint; `execute` then continues it exactly.

    Log entries after that checkpoint are removed. A complete run stays as it is.

    Args:
        timesteps: env steps to train for from the checkpoint on; None: to the planned end. With `timesteps`,
            schedules such as `lin_3e-4` lead to the new end, so that they jump at the checkpoint. `extensions` in
            `config.yaml` keeps the former end, so that a training run from that file repeats the whole run.
        env: the run's env id; required if it is code of the user's own.
        factory: makes the env, if the id is only its name.
        runners: which processes roll out the shards, whichever did before; None: this one.
        settings: new values of settings by key, as after `--set`; the run goes on with them, and is then another one
            than without. They are noted in `resumes.jsonl` and at the beginning of `config.yaml`.
        callbacks: names of callbacks; those that the run folder names are not imported.
        record: makes the callback that records episodes, in a new folder or that of the same run; None: they are not
            recorded.
        cloning: the caller goes on with the behaviour cloning of the run, if that is not done; see `runs.imitate`.
        changes: new values of settings that do not affect what was trained so far.

    Raises:
        ConfigError: it is not a run folder, it is in use, its cloning is not done, or a change is not accepted.
        CheckpointError: it has no valid checkpoint, or that does not fit its configuration.
    """
    files = RunFolder(find_run(run_folder))
    files.lock()
    with undone_on_error(files.unlock):
        with path_is_usable("cannot resume", files.shown, "run"):
            require_own(files.path, WRITTEN)
        require_text("--run-dir", files.path, "run_dir")
        before, settings = files.read_config(env), dict(settings or {})
        if settings.get("stop", 0) is None:  # as `--stop none`
            changes["stop"] = changes.get("stop") or settings.pop("stop") or {}
        _with_settings(before, settings)  # refuses most of what is wrong before the checkpoint is read
        checkpoint = _newest_checkpoint(files, cloning=cloning)
        env_steps = StateReader(checkpoint.state).fields("counters").integer("num_timesteps")
        now = phases_after(env_steps, before.n_timesteps, before.extensions)[0]
        present = config_in(before, now)
        changed = _with_settings(present, settings)
        noted_changes = changes_between(present, changed)
        config = continued(before, changed, env_steps, timesteps, changes)
        if runners is not None and not config.n_shards:
            raise ConfigError("the run was begun without shards (n_shards is 0), which runners need", key="n_shards")
        with source_named(config.where, "track"):
            require_trackers(config.track)
        recorder = None if record is None else record(name=config.env, continues=True)
        with source_named(config.where):
            set_up_process(config.device, config.n_threads)
        # Otherwise nothing will be trained.
        goes_on = CLONING in checkpoint.state if cloning else not is_complete(config, env_steps)
        config, algorithm, phase = _build(config, env_steps, factory, runners)
        run = Run(files, config, algorithm, checkpoint=checkpoint.name, factory=factory, recorder=recorder)
        run.runners, run.settings = runners, phase.settings
        run.changes = noted_changes if goes_on else {}
        with undone_on_error(run.close):
            require_metrics(run)
            had, named = Counter(map(name_of_callback, config.callbacks or ())), Counter(callbacks)
            if missing := " ".join(f"--callback {shlex.quote(name)}" for name in (had - named).elements()):
                words = "the run had callbacks that a run folder cannot import; to have them, add"
                _log.warning("%s %s", words, missing)
            run.callbacks = named_callbacks(with_arguments(callbacks, config.callbacks))
            with source_named(config.where):
                run.algorithm.start_runners()
            inexact = _restore(run, checkpoint)
            remove_unfinished(files.checkpoints.path)  # of a killed save after which none may follow
            if recorder is not None:
                recorder.open(algorithm)
            if goes_on:
                with source_named(config.where):
                    if not cloning:
                        run.algorithm.read_data()
                with files.writing():
                    _note_resume(run, inexact, now.n_timesteps if timesteps is not None else None)
                    files.write_config(config, remark_on_changes(run))
    return run


def _with_settings(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of a run folder, which cannot name code, with settings that the user names."""
    if settings:
        config = load_config(config.env, hparams=parse_value(to_yaml(config)), settings=settings)
    for key in config.code():
        if key not in ("callbacks", *settings):
            words = f"accepted with --resume: --set {shlex.quote(f'{key}={value_of(config, key)}')}"
            raise ConfigError(f"a run folder cannot import its {key}; {words}", key=key)
    return config


def resume_own(
    run_folder: Path, config: TrainConfig, factory: EnvFactory | None = None, settings: Mapping[str, Any] | None = None
) -> Run:
    """Resume a run that this program began: its code, which no run folder may import, is named again.

    Args:
        config: of the run when it was begun.
        settings: see `resume_run`.
    """
    code = config.code()
    callbacks = code.pop("callbacks", [])
    named = {key: value_of(config, key) for key in code}
    return resume_run(run_folder, None, config.env, factory, None, {**named, **(settings or {})}, callbacks)


def _newest_checkpoint(files: RunFolder, *, cloning: bool) -> Checkpoint:
    """Read the newest checkpoint; of a run of imitate whose cloning is not done only for the command that goes on."""
    is_clone = os.path.lexists(files.path / IMITATION_FILE)
    if is_clone and not files.checkpoints.names():
        again = f"python -m marl_sb3.imitate DATA --hparams {files.shown / RUN_CONFIG} --run-dir NEW starts it anew"
        raise ConfigError(f"the cloning of {files.shown} was ended before its first checkpoint: {again}", key="run")
    checkpoint = files.checkpoints.load("latest")
    if CLONING in checkpoint.state and not cloning:
        command = f"python -m marl_sb3.imitate --resume {files.shown}"
        words = f"the cloning of {files.shown} is not done: {command} goes on with it"
        accepted = f"python -m marl_sb3.train ENV --init-from {files.shown}, which takes its best weights so far"
        raise ConfigError(f"{words}; accepted besides: {accepted}", key="run")
    return checkpoint


_NAMES = "MODULE:CLASS, the name of a callback's class"


def named_callbacks(entries: Sequence[Any] | None) -> list[BaseCallback]:
    """Make the callbacks that a user has named; nothing else may name them: to import a module runs its code.

    Args:
        entries: `MODULE:CLASS` or `{MODULE:CLASS: arguments}` each.

    Raises:
        ConfigError: a name cannot be imported, is no callback, or does not take the arguments.
    """
    made: list[BaseCallback] = []
    for entry in entries or ():
        name, arguments = next(iter(entry.items())) if isinstance(entry, Mapping) and len(entry) == 1 else (entry, None)
        where = f"callback {shown(name)}"
        if not isinstance(name, str) or ":" not in name or not isinstance(arguments or {}, Mapping):
            raise ConfigError(f"{where}: accepted: {_NAMES}, or {{MODULE:CLASS: arguments}}", key="callbacks")
        kind = attribute_from_here(name, where, _NAMES, "callbacks")
        if not (isinstance(kind, type) and issubclass(kind, BaseCallback)):
            module_name, _, attribute = name.partition(":")
            words = f"{module_name} has no class {attribute!r} that is a callback"
            raise ConfigError(f"{where}: {words}; accepted: a subclass of MultiAgentCallback", key="callbacks")
        try:
            callback = kind(**(arguments or {}))
        except Exception as error:  # code of the user's
            raise ConfigError(f"{where} cannot be made: {described(error)}", key="callbacks") from error
        made += accepted_callbacks(callback)
    return made


def remark_on_changes(run: Run) -> str | None:
    """Return a line about the settings that a resume has changed; None if what is learned does not depend on any."""
    if not any(change.learns_otherwise for change in run.changes.values()):
        return None
    changes = ", ".join(f"{name} {change}" for name, change in run.changes.items())
    done = counted(run.algorithm.num_timesteps, "env step")
    return f"changed after {done}: {changes}"


def roll_back(run: Run, count: int, error: NumericError) -> None:
    """Return to the latest checkpoint after an error, and continue from there with other random numbers.

    Args:
        count: the number of rollbacks of this training run, including this one.
    """
    checkpoint = run.files.checkpoints.load("latest")
    _log.warning("%s", error)
    _log.warning("rollback %d of %d, to %s, with other random numbers", count, MAX_ROLLBACKS, checkpoint.name)
    run.checkpoint = checkpoint.name
    run.changes = {}  # they were noted when the run was resumed
    _note_resume(run, _restore(run, checkpoint))
    # The same random numbers would lead to the same error.
    assert run.config.seed is not None, "prepare() has drawn one"
    set_random_seed(int(spawned(run.config.seed, Stream.ROLLBACKS, count, count).generate_state(1)[0]))


def _restore(run: Run, checkpoint: Checkpoint) -> dict[str, str]:
    """Restore the state of a checkpoint, and truncate the logs to its iteration.

    Returns:
        Part -> reason, for each part of the state that could not be restored exactly.
    """
    state, present = StateReader(checkpoint.state), run.algorithm.env.num_envs
    if state.integer("num_envs") != present:  # it could be loaded, but would not continue the same run
        raise state.error("num_envs", state.integer("num_envs"), str(present))
    envs = run.algorithm.set_state(checkpoint)
    inexact = {f"env {index}": why for index, why in envs.items()}
    saved, versions = checkpoint.about.fields("versions"), run.algorithm.about()["versions"]
    for name, version in versions.items():
        if name in saved and saved.value(name) != version:
            inexact[name] = f"was version {saved.string(name)}, is {version}"
    for what, why in inexact.items():
        _log.warning("inexact resume: %s: %s", what, why)
    with run.files.writing():
        # The passes of a cloning, which takes no env steps, are logged by their number.
        last = max(run.algorithm.iteration, run.algorithm.num_timesteps)
        truncate_logs(run.folder, run.algorithm.iteration, last)
    return inexact


def _note_resume(run: Run, inexact: Mapping[str, str], extended_from: int | None = None) -> None:
    """Add a resume to `resumes.jsonl`, which is replaced as a whole.

    Args:
        inexact: what `_restore` returned.
        extended_from: the planned end, in env steps, before `--timesteps` moved it; None: it was not moved.
    """
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "checkpoint": run.checkpoint,
        "exact": not inexact and remark_on_changes(run) is None,
        "inexact": dict(inexact),
        "changed": {name: {"from": change.old, "to": change.new} for name, change in run.changes.items()},
        "env_steps": run.algorithm.num_timesteps,
        "n_timesteps": run.config.n_timesteps,
        "extended_from": extended_from,
    }
    resumes = run.files.resumes
    former = read_regular(resumes) if os.path.lexists(resumes) else b""
    write_whole(resumes, former + f"{json.dumps(entry)}\n".encode())


# --- Evaluations, and the names of all metrics ------------------------------------------------------------------------


def evaluations_of(run: Run) -> list[EvaluationCallback]:
    """Make the evaluation that the configuration asks for; none if evaluation is off. The caller closes it."""
    settings, n_envs = asdict(run.config.evaluation), run.config.n_envs
    name = settings.pop("function")
    where, key = f"evaluation.function {shown(name)}", "evaluation.function"
    function = None if name is None else attribute_from_here(name, where, "MODULE:NAME of a function", key)
    if name is not None and not callable(function):
        module_name, _, attribute = name.partition(":")
        raise ConfigError(f"{where}: {module_name} has no function {attribute!r}", key=key)
    if not settings["interval"]:
        if name is not None:
            words = f"evaluation.function is {shown(name)}, and evaluation.interval is 0: it would never be called"
            raise ConfigError(f"{words}; accepted: an interval of at least 1", key="evaluation.interval")
        return []
    if settings["duration_unit"] == "episodes":
        n_envs = min(settings["duration"], n_envs)
    return [EvaluationCallback(lambda: run.make_env(n_envs), **settings, evaluation_function=function)]


def curricula_of(run: Run, more_metrics: Sequence[str] = ()) -> list[CurriculumCallback]:
    """Make the curriculum that the configuration asks for; none if there is none.

    Args:
        more_metrics: names of metrics that callbacks add to the result.
    """
    with source_named(run.config.where, "curriculum"):
        return [] if run.config.curriculum is None else [CurriculumCallback.of(run.config.curriculum, more_metrics)]


def metric_names(run: Run) -> list[str]:
    """Return the flat names of all metrics that the iterations of a run log."""
    names = [*run.algorithm.metric_names(), *(name for each in curricula_of(run) for name in each.metric_names())]
    if isinstance(run.algorithm.assignment, League):
        names += run.algorithm.assignment.metric_names()
    for evaluation in evaluations_of(run):
        with closing(evaluation):
            names = [*names, *evaluation.metric_names(run.algorithm)]
    return names


def require_metrics(run: Run) -> None:
    """Refuse stop conditions and a checkpoint metric that no iteration will log."""
    with source_named(run.config.where):
        known = metric_names(run)
        for metric in run.config.stop:
            require_logged(metric, known)
        require_logged(run.config.checkpoints.metric, known, "checkpoints.metric")
        for metric in (run.config.curriculum or {}).get("advance_at") or ():
            require_logged(metric, known, "curriculum")
