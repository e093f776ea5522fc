"""A run, from its configuration to its folder: build, train, write down."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed

from marl_sb3.callbacks import EvaluationCallback, RewardHistogramCallback, StopOnMetric, StopOnSignal
from marl_sb3.callbacks.checkpoint import CheckpointCallback
from marl_sb3.callbacks.stop import StopAfterSteps
from marl_sb3.config import TrainConfig, load_config, to_yaml
from marl_sb3.config.extensions import Phase, continued, is_complete, phases_after
from marl_sb3.envs.registry import EnvFactory, factory_id
from marl_sb3.errors import ConfigError, EnvRaisedError, MarlSb3Error, NumericError, note_remedy, note_traceback_file
from marl_sb3.ids import file_names
from marl_sb3.learners.bundle import PolicyBundle, read_bundle
from marl_sb3.learners.threads import start_without_dynamo
from marl_sb3.metrics import Result, require_metric
from marl_sb3.runs.build import build, check_device, policy_spec, resolved, set_up_process
from marl_sb3.runs.folder import RunFolder, find_run, write_traceback
from marl_sb3.runs.logs.events import EventsFormat, quiet_writers
from marl_sb3.runs.logs.rows import PROGRESS_FILE, CsvFormat, JsonLinesFormat
from marl_sb3.runs.logs.settings import write_settings
from marl_sb3.runs.logs.truncate import truncate_logs
from marl_sb3.runs.reader import RESULT_FILE
from marl_sb3.runs.run import Run
from marl_sb3.storage.atomic import replaced_folder
from marl_sb3.storage.checkpoint_format import Checkpoint
from marl_sb3.storage.state import StateReader
from marl_sb3.training.callback import MultiAgentCallback
from marl_sb3.training.result_logger import ResultLogger, ResultWriter
from marl_sb3.transfer.init_from import InitFrom, parse_init_from
from marl_sb3.transfer.init_from import init_from as start_from
from marl_sb3.types import PolicyID
from marl_sb3.vec_env import make_vec_env

_log = logging.getLogger(__name__)

MAX_ROLLBACKS = 3


class LastResult(MultiAgentCallback):
    """Keeps the result of the latest iteration, and of the latest one that was evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.result: Result | None = None
        self.evaluated: Result | None = None

    def on_iteration_end(self, result: Result) -> bool:
        """Keep it."""
        self.result = result
        if "evaluation" in result:
            self.evaluated = result
        return True


def prepare(
    config: TrainConfig,
    run_dir: str | Path | None = None,
    factory: EnvFactory | None = None,
    *,
    trust_pickle: bool = False,
) -> Run:
    """Build everything, check everything, then make the run folder.

    Args:
        config: the configuration; a missing seed is drawn.
        run_dir: the folder; it must be empty or not exist. None: `runs/<env>/<UTC time>-<4 hex>`.
        factory: makes the env, where the id in the configuration is only its name.
        trust_pickle: allow SB3 zips in `init_from`. It is no setting: no file may say so.

    Raises:
        ConfigError: a setting does not fit; nothing has been written then.
        CheckpointError: a checkpoint in `init_from` is damaged, or there is none.
    """
    config = _with_found_sources(resolved(config))
    for note in config.notes:
        _log.warning("%s", note)
    check_device(config)
    set_up_process(config)
    files = RunFolder.new(config.env, run_dir)
    run = Run(files, config, build(config, factory), factory=factory)
    try:
        _require_metrics(run)
        _start_from(run, trust_pickle)
        to_yaml(config)  # says what a file cannot hold
        files.make(config)
    except BaseException:
        run.algorithm.env.close()
        files.unlock()
        raise
    return run


def _with_found_sources(config: TrainConfig) -> TrainConfig:
    """With the run itself where `init_from` names a folder of runs: the newest is another one tomorrow."""
    if config.init_from is None:
        return config
    with _source_named(config, "init_from"):
        found = [str(_with_found_run(parse_init_from(text))) for text in config.init_from]
    return replace(config, init_from=found)


def _with_found_run(source: InitFrom) -> InitFrom:
    is_checkpoint_or_run = any((source.path / name).exists() for name in ("manifest.json", "checkpoints"))
    if is_checkpoint_or_run or not source.path.is_dir():
        return source
    return replace(source, path=find_run(source.path))


def _start_from(run: Run, trust_pickle: bool) -> None:
    with _source_named(run.config, "init_from"):
        sources = [parse_init_from(text) for text in run.config.init_from or ()]
        start_from(run.algorithm, sources, run.config.init_layers, trust_pickle=trust_pickle)


@contextmanager
def _source_named(config: TrainConfig, key: str) -> Iterator[None]:
    """Say in errors where a setting came from."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{config.where(key)}{error}", key=error.key) from error


def resume_run(
    run_folder: str | Path,
    timesteps: int | None = None,
    env: str | None = None,
    factory: EnvFactory | None = None,
    **changes: Any,
) -> Run:
    """Bring a run back to its newest checkpoint; `execute` then goes on as if nothing had happened.

    What it has logged after that checkpoint is taken out of its logs. A run that is complete stays as it is.

    Args:
        run_folder: the run.
        timesteps: train for this many env steps more, from the checkpoint on; None: to the end that was planned.
            Schedules then run to the new end, and jump where it was another one. `extensions` in `config.yaml` keeps
            the former one, so that a training from it repeats the whole run.
        env: the run's env id; needed where it is code of your own.
        factory: makes the env, where the id is only its name.
        changes: other values for fields of the configuration that do not change what was trained so far.

    Raises:
        ConfigError: it is not a run folder, it is in use, or a change is not accepted.
        CheckpointError: it has no valid checkpoint, or that does not fit its configuration.
    """
    files = RunFolder.existing(run_folder)
    config = files.read_config(env)
    files.lock()
    try:
        checkpoint = files.checkpoints.load("latest")
        before, env_steps = config, StateReader(checkpoint.state).fields("counters").integer("num_timesteps")
        config = continued(before, env_steps, timesteps, changes)
        check_device(config)
        set_up_process(config)
        run = Run(files, config, build(config, factory), checkpoint=checkpoint.name, factory=factory)
    except BaseException:
        files.unlock()
        raise
    try:
        _require_metrics(run)
        inexact = _bring_back(run, checkpoint)
        if not is_complete(config, env_steps):  # otherwise nothing follows
            planned = phases_after(before, env_steps)[0].n_timesteps
            with files.writing():
                files.write_config(config)
                _note_resume(run, inexact, planned if timesteps is not None else None)
    except BaseException:
        run.algorithm.env.close()
        files.unlock()
        raise
    return run


def restore(
    run_folder: str | Path,
    checkpoint: str = "best",
    env: str | None = None,
    factory: EnvFactory | None = None,
    device: str = "cpu",
) -> Run:
    """The policies of a run as they were at one of its checkpoints, to evaluate or export them.

    Args:
        run_folder: the run.
        checkpoint: `best`, `latest` or the number of an iteration.
        env: the run's env id; needed where it is code of your own.
        factory: makes the env, where the id is only its name.
        device: where the policies go, whatever they were trained on.

    Raises:
        ConfigError: it is not a run folder.
        CheckpointError: there is no such checkpoint, or it is damaged, or does not fit the run's configuration.
    """
    files = RunFolder.existing(run_folder)
    config = replace(files.read_config(env), device=device)
    check_device(config)
    set_up_process(config)
    run = Run(files, config, build(config, factory), factory=factory)
    try:
        # Now, not before the policies are built: a training that is under way removes older checkpoints meanwhile.
        found = files.checkpoints.load(checkpoint)
        run.algorithm.set_weights(found)
        run.checkpoint = found.name
    except BaseException:
        run.algorithm.env.close()
        raise
    return run


def restore_policies(
    run_folder: str | Path, checkpoint: str = "best", env: str | None = None, device: str = "cpu"
) -> tuple[TrainConfig, PolicyBundle]:
    """The configuration of a run, and its policies as they were at one of its checkpoints; no env is made.

    Args:
        run_folder: the run.
        checkpoint: `best`, `latest` or the number of an iteration.
        env: the run's env id; it has to be that of the run, where it is given.
        device: where the policies go, whatever they were trained on.

    Raises:
        ConfigError: it is not a run folder, or is of another env.
        CheckpointError: there is no such checkpoint, or it is damaged, or does not fit the run's configuration.
    """
    files = RunFolder.existing(run_folder)
    config = replace(files.read_config(env, makes_env=False), device=device)
    set_up_process(config)
    found = files.checkpoints.load(checkpoint)
    specs = {
        policy_id: policy_spec(config, policy_id) for policy_id in StateReader(found.state).fields("specs").names()
    }
    return config, read_bundle(found, specs, device)


def load_run(
    folder: str | Path, checkpoint: str = "best", *, env: str | EnvFactory | None = None, device: str = "cpu"
) -> Run:
    """A run that was trained before, with the policies of one of its checkpoints.

    `run.history` is how it went, `run.evaluate()` how well the policies play, `run.policies` are the SB3 algorithms. To
    train on, use `marl_sb3.train(resume=folder)`.

    Args:
        folder: the run folder, or a folder of runs, such as `runs/arena`: the newest.
        checkpoint: whose weights the policies get: `best`, `latest` or the number of an iteration.
        env: the run's env id, or what makes the env; needed where it is code of your own.
        device: where the policies go, whatever they were trained on.

    Raises:
        ConfigError: it is not a run folder, or `env` is needed.
        CheckpointError: there is no such checkpoint, or it is damaged, or does not fit the run's configuration.
    """
    name, factory = (env, None) if env is None or isinstance(env, str) else (factory_id(env), env)
    files = RunFolder.existing(folder)
    results = files.results()
    run = restore(files.path, checkpoint, name, factory, device)
    run.result = results[-1] if results else None
    run.latest_evaluation = next((result for result in reversed(results) if "evaluation" in result), None)
    zips = {policy_id: files.policies / zip_ for policy_id, zip_ in file_names(list(run.policies), ".zip").items()}
    run.policy_files = {policy_id: path for policy_id, path in zips.items() if path.is_file()}
    return run


@dataclass(frozen=True)
class Preview:
    """What is known of a run before it is started.

    Attributes:
        metric_names: the flat names of all its metrics.
        minibatches: by policy, the minibatch size and the agent steps of a rollout, where the algorithm has both.
    """

    metric_names: Sequence[str]
    minibatches: Mapping[PolicyID, tuple[int, int]]


def preview(config: TrainConfig, factory: EnvFactory | None = None) -> Preview:
    """Build a run, so that it is known to be possible, and do not start it.

    Raises:
        ConfigError: a setting does not fit.
    """
    config = resolved(config)
    check_device(config)
    start_without_dynamo()
    run = Run(RunFolder(Path()), config, build(config, factory), factory=factory)
    try:
        policies = run.algorithm.policies.items()
        sizes = {
            policy_id: (policy.batch_size, policy.n_steps * policy.n_envs)
            for policy_id, policy in policies
            if hasattr(policy, "batch_size") and hasattr(policy, "n_steps")
        }
        return Preview([*run.algorithm.metric_names(), *_evaluation_metrics(run)], sizes)
    finally:
        run.algorithm.env.close()


def _require_metrics(run: Run) -> None:
    known = [*run.algorithm.metric_names(), *_evaluation_metrics(run)]
    for metric in run.config.stop:
        require_metric(metric, known)
    require_metric(run.config.checkpoints.metric, known, "checkpoints.metric")


def _evaluations(run: Run) -> list[EvaluationCallback]:
    """The evaluation that the configuration asks for, if it does."""
    config = run.config
    if not config.evaluation.interval:
        return []
    by_episodes = config.evaluation.duration_unit == "episodes"
    n_envs = min(config.evaluation.duration, config.n_envs) if by_episodes else config.n_envs
    env, kwargs = run.factory or config.env, config.env_kwargs
    return [
        EvaluationCallback(
            lambda: make_vec_env(env, n_envs, vectorizer=config.vectorizer, **kwargs),
            config.evaluation.interval,
            config.evaluation.duration,
            config.evaluation.duration_unit,
            config.evaluation.deterministic,
            config.evaluation.seed,
            interval_unit=config.evaluation.interval_unit,
        )
    ]


def _evaluation_metrics(run: Run) -> list[str]:
    names = []
    for evaluation in _evaluations(run):
        names += evaluation.metric_names(run.algorithm)
        evaluation.close()
    return names


def _bring_back(run: Run, checkpoint: Checkpoint) -> dict[str, str]:
    """Go back to a checkpoint, and cut the logs there; what could not be brought back exactly, and why."""
    _require_same_number_of_envs(run, checkpoint)
    envs = run.algorithm.set_state(checkpoint)
    inexact = {f"env {index}": why for index, why in envs.items()}
    theirs, ours = checkpoint.about.fields("versions"), run.algorithm.about()["versions"]
    for name, version in ours.items():
        if name in theirs and theirs.value(name) != version:
            inexact[name] = f"was version {theirs.string(name)}, is {version}"
    for what, why in inexact.items():
        _log.warning("inexact resume: %s: %s", what, why)
    with run.files.writing():
        truncate_logs(run.folder, run.algorithm.iteration, run.algorithm.num_timesteps)
    return inexact


def _note_resume(run: Run, inexact: Mapping[str, str], extended_from: int | None = None) -> None:
    """Note it in `resumes.jsonl`.

    Args:
        run: as it has been brought back.
        inexact: what could not be brought back exactly.
        extended_from: the end, in env steps, that was planned before `--timesteps` moved it; None: it stays.
    """
    assert run.checkpoint is not None, "it has been brought back from one"
    steps = {"env_steps": run.algorithm.num_timesteps, "n_timesteps": run.config.n_timesteps}
    run.files.note_resume(run.checkpoint, inexact, **steps, extended_from=extended_from)


def _require_same_number_of_envs(run: Run, checkpoint: Checkpoint) -> None:
    """Other numbers would load, but be another run than that of the configuration."""
    state, ours = StateReader(checkpoint.state), run.algorithm.env.num_envs
    if state.integer("num_envs") != ours:
        raise state.error("num_envs", state.integer("num_envs"), str(ours))


def execute(run: Run, callbacks: Sequence[BaseCallback] = ()) -> Run:
    """Train a prepared run to its end, its stop condition, or a signal; then save its policies.

    What was learned is saved also if the training fails. The env is closed.
    """
    config = run.config
    last, signals = LastResult(), StopOnSignal()
    stop = StopOnMetric(config.stop, _evaluation_metrics(run))
    evaluations, checkpoints = _evaluations(run), _checkpoint_callback(run)
    with ExitStack() as cleanup:
        cleanup.callback(run.files.unlock)
        cleanup.callback(run.algorithm.env.close)
        cleanup.enter_context(signals)
        for evaluation in evaluations:
            cleanup.callback(evaluation.close)
        try:
            histograms = RewardHistogramCallback()
            _learn(
                run, lambda end: [*evaluations, last, end, signals, histograms, *callbacks, checkpoints], stop, signals
            )
        except BaseException as error:
            checkpoints.rescue()
            _try_to_save_policies(run)
            _keep_traceback(run, error)
            raise
        finally:
            run.result, run.latest_evaluation = last.result, last.evaluated
        # Also if nothing was left to do: the process may have been killed after its last checkpoint.
        if run.algorithm.iteration > 0:
            run.policy_files = _save_policies_of_complete(run)
    run.interrupted = signals.received is not None
    run.stopped_by = signals.received or stop.reached
    return run


def _save_policies_of_complete(run: Run) -> dict[PolicyID, Path]:
    """Save the policies of a run whose checkpoint is written; if this fails, say that nothing is lost."""
    try:
        return _save_policies(run)
    except Exception as error:
        again = f"python -m marl_sb3.export {run.folder} --checkpoint latest"
        note_remedy(error, f"checkpoint {run.checkpoint} is complete: {again} writes the policies")
        raise


def _try_to_save_policies(run: Run) -> None:
    """Save what was learned before the training failed; if this fails too, it is not the error to be told."""
    if run.algorithm.iteration == 0:
        return
    if not run.algorithm.is_finite():
        _log.warning("the policies are not saved: their weights are not finite")
        return
    try:
        run.policy_files = _save_policies(run)
    except Exception as error:  # torch raises errors of its own where a disk is full
        _log.warning("the policies are not saved: %s", error)


def _keep_traceback(run: Run, error: BaseException) -> None:
    """Keep the traceback of an error that does not say all of it in its message."""
    if isinstance(error, MarlSb3Error) and not isinstance(error, EnvRaisedError):
        return
    if not isinstance(error, Exception):  # an interruption
        return
    try:
        note_traceback_file(error, str(write_traceback(run.folder, error)))
    except OSError as another:  # on a full disk, say; it is not the error to be told
        _log.warning("the traceback is not kept: %s", another)


def _checkpoint_callback(run: Run) -> CheckpointCallback:
    config = run.config

    def note(name: str) -> None:
        run.checkpoint = name

    return CheckpointCallback(
        run.files.checkpoints.path,
        config.checkpoints.every,
        config.checkpoints.keep,
        config.checkpoints.metric,
        config.checkpoints.mode == "max",
        at_start=config.on_nan == "rollback",
        on_saved=note,
    )


def _learn(
    run: Run,
    callbacks_with: Callable[[MultiAgentCallback], Sequence[BaseCallback]],
    stop: StopOnMetric,
    signals: StopOnSignal,
) -> None:
    """Train all phases that are left, the last one to its end or its stop condition.

    Args:
        run: as it is now.
        callbacks_with: all callbacks, with the one that ends a phase in its place.
        stop: ends the last phase: a run has gone on from where an earlier one ended, whatever ended it there.
        signals: end any phase, and the run.
    """
    for phase in phases_after(run.config, run.algorithm.num_timesteps):
        _learn_phase(run, callbacks_with(stop if phase.until is None else StopAfterSteps(phase.until)), phase)
        if signals.received or run.algorithm.num_timesteps < phase.end:
            return
        run.algorithm.keep_callback_states()


def _learn_phase(run: Run, callbacks: Sequence[BaseCallback], phase: Phase) -> None:
    """Train to the planned end, going back to the latest checkpoint where the configuration says so."""
    rollbacks = 0
    while (left := phase.n_timesteps - run.algorithm.num_timesteps) > 0:
        try:
            with _logs(run):
                run.algorithm.learn(left, callback=list(callbacks), reset_num_timesteps=False)
            return
        except NumericError as error:
            rollbacks += 1
            if run.config.on_nan != "rollback" or rollbacks > MAX_ROLLBACKS:
                raise
            _roll_back(run, rollbacks, error)


def _roll_back(run: Run, count: int, error: NumericError) -> None:
    checkpoint = run.files.checkpoints.load("latest")
    _log.warning("%s", error)
    _log.warning("rollback %d of %d, to %s, with other random numbers", count, MAX_ROLLBACKS, checkpoint.name)
    run.checkpoint = checkpoint.name
    _note_resume(run, _bring_back(run, checkpoint))
    # The same numbers would lead to the same fault.
    assert run.config.seed is not None, "prepare() has drawn one"
    set_random_seed(int(np.random.SeedSequence(run.config.seed, spawn_key=(count, count)).generate_state(1)[0]))


def train(
    env: str | EnvFactory | None = None,
    *,
    policies: str | Mapping[PolicyID, Mapping[str, Any]] | None = None,
    algo: str | None = None,
    timesteps: int | None = None,
    n_envs: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    hparams: str | Path | None = None,
    stop: Mapping[str, float] | None = None,
    vectorizer: str | None = None,
    device: str | None = None,
    init_from: Sequence[str] | None = None,
    trust_pickle: bool = False,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    callback: Sequence[BaseCallback] = (),
    progress_bar: bool | None = None,
) -> Run:
    """What `python -m marl_sb3.train` does.

    Like the command it sets PyTorch's number of threads in this process, to `n_threads` (1 unless set).

    Args:
        env: an env id, or a factory of a `ParallelEnv`; None takes the only env in `hparams`.
        policies: `shared`, `per_agent`, or by policy id `{"agents": [...], ...settings}`.
        algo: name of the algorithm.
        timesteps: env steps to train for.
        n_envs: envs that step together.
        seed: run seed; None draws one, which `config.yaml` tells.
        settings: single settings by key, as after `--set`: `{"learning_rate": 1e-4, "env.height": 6}`.
        hparams: a file of settings, instead of the shipped preset.
        stop: value by metric; training ends when one is reached.
        vectorizer: see `make_vec_env`.
        device: as in SB3.
        init_from: what the weights start from, each as after `--init-from`.
        trust_pickle: allow SB3 zips there.
        run_dir: the run folder; None: a new one below `runs`.
        resume: a run folder: go on with that run, `timesteps` env steps more or to its planned end. Of the other
            arguments only `env`, `stop`, `callback` and `progress_bar` are accepted then.
        callback: more callbacks.
        progress_bar: show how the training goes: a live view on terminals and in notebooks, plain lines elsewhere.
            None: in notebooks only.

    Raises:
        ConfigError: a setting is wrong; nothing has been written then.
        EnvError: the env broke the `ParallelEnv` contract.
    """
    name, factory = (env, None) if env is None or isinstance(env, str) else (factory_id(env), env)
    if resume is not None:
        unfit = [policies, algo, n_envs, seed, settings, hparams, vectorizer, device, init_from, run_dir]
        if any(value is not None for value in unfit):
            raise ConfigError(
                "with resume only env, timesteps, stop, callback and progress_bar are accepted", key="resume"
            )
        return _execute_and_show(resume_run(resume, timesteps, name, factory, stop=stop), callback, progress_bar)
    config = load_config(
        name,
        algo,
        hparams,
        settings,
        policies=policies,
        n_timesteps=timesteps,
        n_envs=n_envs,
        seed=seed,
        stop=stop,
        vectorizer=vectorizer,
        device=device,
        init_from=init_from,
    )
    return _execute_and_show(prepare(config, run_dir, factory, trust_pickle=trust_pickle), callback, progress_bar)


def _execute_and_show(run: Run, callback: Sequence[BaseCallback], progress_bar: bool | None) -> Run:
    from marl_sb3.runs.view import wanted_progress

    progress = wanted_progress(run, progress_bar)
    try:
        return execute(run, [*callback, *progress])
    finally:
        for each in progress:
            each.close()


_LOGS: Sequence[Callable[[Path], ResultWriter]] = (
    lambda folder: JsonLinesFormat(folder / RESULT_FILE),
    lambda folder: CsvFormat(folder / PROGRESS_FILE),
    EventsFormat,
)


@contextmanager
def _logs(run: Run) -> Iterator[None]:
    """While it lasts, the metrics go into the run folder."""
    folder = run.folder
    write_settings(folder, run.config, list(run.algorithm.policies))
    with ExitStack() as cleanup:
        cleanup.enter_context(quiet_writers())
        writers: list[ResultWriter] = []
        for make in _LOGS:
            writers.append(make(folder))
            cleanup.callback(writers[-1].close)
        run.algorithm.set_logger(ResultLogger(str(folder), writers))
        yield


def _save_policies(run: Run) -> dict[PolicyID, Path]:
    """The policies' folder appears whole or not at all."""
    folder = run.files.policies
    with replaced_folder(folder) as unfinished:
        paths = run.algorithm.save_policies(unfinished)
    return {policy_id: folder / path.name for policy_id, path in paths.items()}
