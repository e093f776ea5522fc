"""`marl_sb3.imitate(...)`: train the policies of a new run to act as recorded episodes do."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marl_sb3.callbacks import StopOnSignal
from marl_sb3.core.config.algorithms import AlgorithmInfo
from marl_sb3.core.config.values import counted
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.learners.learner import limited_threads
from marl_sb3.core.learners.spec import named_algorithm
from marl_sb3.core.sb3.traits import trait
from marl_sb3.core.state.fields import read_states, states_of
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.training.loop import IterationReport
from marl_sb3.core.training.results import ResultLogger, iteration_result
from marl_sb3.core.vec_env.seeding import FIRST_CLONED, derived_seed
from marl_sb3.envs.finding import named_factory
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.data.cloning import Cloning, CloningOptions, OfflineTraining
from marl_sb3.extensions.data.dataset import PolicyData, read_data
from marl_sb3.extensions.data.demonstrations import require_episodes
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.display.tables import progress_bars
from marl_sb3.extensions.display.text import number
from marl_sb3.files.paths import as_path, path_is_usable, require_text
from marl_sb3.files.regular import read_regular
from marl_sb3.runs.building import import_algorithms, source_named
from marl_sb3.runs.execution import save_policies_of_complete
from marl_sb3.runs.files import Hparams
from marl_sb3.runs.folder import IMITATION_FILE, RunFolder, find_run, undone_on_error
from marl_sb3.runs.logs import logs_of
from marl_sb3.runs.run import Run
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.settings import load_config, require_kinds
from marl_sb3.runs.start import CLONING, prepare, resume_run
from marl_sb3.runs.tracking import TrackerThread, tracking
from marl_sb3.runs.view import print_files
from marl_sb3.signals import pass_on
from marl_sb3.types import PolicyID

_log = logging.getLogger(__name__)
Jobs = dict[PolicyID, Cloning | OfflineTraining]


def imitate(
    data: str | Path | None = None,
    env: str | EnvFactory | None = None,
    *,
    policies: str | Mapping[PolicyID, Mapping[str, Any]] | None = None,
    algo: str | AlgorithmInfo | None = None,
    seed: int | None = None,
    epochs: int = CloningOptions.epochs,
    batch_size: int = CloningOptions.batch_size,
    learning_rate: float = CloningOptions.learning_rate,
    validation: float = CloningOptions.validation,
    patience: int = CloningOptions.patience,
    entropy_coefficient: float = CloningOptions.entropy_coefficient,
    settings: Mapping[str, Any] | None = None,
    hparams: Hparams | None = None,
    trust_file: bool = False,
    device: str | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    progress_bar: bool = True,
) -> Run:
    """Train policies on recorded episodes, as `python -m marl_sb3.imitate` does: behaviour cloning, or offline by IQL.

    Each policy learns the actions of its agents; those of IQL learn from their rewards, too, by their own losses. The
    run that this returns has a checkpoint of the policies, which `evaluate`, `export` and `train(init_from=...)` take;
    no env step was trained.

    Args:
        data: a folder of recorded episodes, or of a Minari dataset. None: with `resume`, the one of that run.
        env: the env that they are of; None takes the only env in `hparams`.
        policies: see `marl_sb3.train`; the same for `algo`, `settings`, `hparams`, `trust_file`, `device` and
            `run_dir`.
        seed: seed of the run, of the initial weights and of the order of the data. None: the run draws one.
        epochs: see `CloningOptions`; the same for the arguments up to `entropy_coefficient`.
        resume: go on with the cloning of this run folder, exactly; all else is as it was.
        progress_bar: print the progress and the files. False: nothing is printed.

    A signal ends it as `marl_sb3.train`.

    Raises:
        ConfigError: a setting is wrong, or a policy cannot learn from the data; nothing has been written.
        NumericError: a loss is not finite.
    """
    require_kinds(hparams, settings)
    options = CloningOptions(epochs, batch_size, learning_rate, validation, patience, entropy_coefficient)
    name, factory = named_factory(env)
    if resume is not None:
        changed = policies or algo or settings or hparams or trust_file or device or run_dir or seed is not None
        if changed or options != CloningOptions():
            words = "resume is given with settings, which it cannot change"
            raise ConfigError(f"{words}; accepted: data, env and progress_bar", key="resume")
        run = resume_clone(resume, data, name, factory, quiet=not progress_bar)
        pass_on(run.stopped_by)
        return run
    algo = None if algo is None else named_algorithm(algo)
    if trust_file and hparams is not None:
        import_algorithms(hparams, name)
    of_run: dict[str, Any] = {"policies": policies, "seed": seed, "device": device}
    config = load_config(name, algo, hparams, settings, trust_file=trust_file, **of_run)
    run = clone(config, as_path("data", data), options, run_dir, factory, quiet=not progress_bar)
    pass_on(run.stopped_by)
    return run


def clone(
    config: TrainConfig,
    data: Path,
    options: CloningOptions,
    run_dir: str | Path | None = None,
    factory: EnvFactory | None = None,
    *,
    quiet: bool = False,
) -> Run:
    """Make a run of policies that act as recorded episodes do; the arguments are those of `prepare` and `imitate`.

    Returns:
        The run, which is closed. A signal ends the passes over the data: `resume_clone` goes on.
    """
    require_text("data", data.absolute(), "data")
    run = prepare(config, run_dir, factory, makes_folder=False)
    with ExitStack() as cleanup:
        cleanup.callback(run.close)
        with source_named(run.config.where):
            jobs = _jobs(run, read_data(data), data, options)
        how = "cloned from" if any(isinstance(job, Cloning) for job in jobs.values()) else "trained on"
        remark = f"its policies were {how} {data} by imitate with {options}; training from this file does not do that"
        about = {"data": os.path.abspath(data), **asdict(options)}
        run.files.make(run.config, remark, json.dumps(about, indent=1) + "\n")
        return _executed(run, jobs, options, quiet=quiet)


def resume_clone(
    run_folder: str | Path,
    data: str | Path | None = None,
    env: str | None = None,
    factory: EnvFactory | None = None,
    *,
    quiet: bool = False,
    **changes: Any,
) -> Run:
    """Go on with a cloning from its newest checkpoint, exactly; one that is done stays as it is.

    Args:
        data: where the episodes are now; None: where they were.
        changes: see `resume_run`; the same for the other arguments.

    Raises:
        ConfigError: it is no run of `imitate`, the data are not there, or see `resume_run`.
        CheckpointError: see `resume_run`.
    """
    named, options = _imitation_of(RunFolder(find_run(run_folder)))
    data = named if data is None else as_path("data", data)
    sets = read_data(data)
    run = resume_run(run_folder, env=env, factory=factory, cloning=True, **changes)
    with ExitStack() as cleanup:
        cleanup.callback(run.close)
        state = StateReader(run.files.checkpoints.load("latest").state)
        jobs = _jobs(run, sets, data, options, learn=False) if CLONING in state else {}
        checksums = {policy_id: job.checksum for policy_id, job in jobs.items()}
        if jobs:
            read_states(jobs, state.fields(CLONING))()
        for policy_id, job in jobs.items():
            if job.checksum != checksums[policy_id]:
                _log.warning("inexact: policy %s: %s has changed since the checkpoint", policy_id, data)
        return _executed(run, jobs, options, quiet=quiet)


def _imitation_of(files: RunFolder) -> tuple[Path, CloningOptions]:
    """Read the data and the options of a cloning from its run folder, which may be of somebody else."""
    shown = files.shown / IMITATION_FILE
    if not os.path.lexists(files.path / IMITATION_FILE):
        words = f"{files.shown} is no run of imitate: it has no {IMITATION_FILE}"
        raise ConfigError(f"{words}; accepted: a folder that imitate has made", key="run")
    with path_is_usable("cannot read", shown, "run"):
        content = read_regular(files.path / IMITATION_FILE)
    try:
        about = json.loads(content)
        return as_path("data", about.pop("data")), CloningOptions(**about)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{shown} is damaged: {error}", key="run") from error


def _executed(run: Run, jobs: Jobs, options: CloningOptions, *, quiet: bool) -> Run:
    """Pass over the data until all policies are done, or a signal comes; then save them, and print their files."""
    with limited_threads(run.config.n_threads), tracking(run) as trackers:
        if jobs:
            with logs_of(run, [each.output for each in trackers]):
                _train(run, jobs, options, trackers, quiet=quiet)
            if not run.interrupted:
                for job in jobs.values():
                    job.finish()
                with undone_on_error(lambda: _log.warning("no checkpoint was written")):
                    _save(run, trackers)
        run.policy_files = save_policies_of_complete(run)
    if not quiet:
        print_files(standard_console(), run, "python -m marl_sb3.evaluate")
    return run


def _jobs(run: Run, sets: list[PolicyData], data: Path, options: CloningOptions, *, learn: bool = True) -> Jobs:
    """Return the cloning or the offline training of each policy that is trained.

    Args:
        sets: what is in the data.
        learn: see `Cloning`.

    Raises:
        ConfigError: a policy cannot learn from the data.
    """
    assert run.config.seed is not None, "prepare() has drawn one"
    jobs: Jobs = {}
    for index, (policy_id, learner) in enumerate(run.algorithm.parts.learners.items()):
        if learner.trained:
            seed = derived_seed(run.config.seed, FIRST_CLONED + index)
            episodes = require_episodes(sets, learner.rows, data)
            if trait(learner.algorithm, "learns_offline"):
                jobs[policy_id] = OfflineTraining(learner, episodes, options, learn=learn)
            else:
                jobs[policy_id] = Cloning(learner, episodes, options, seed, learn=learn)
    if not jobs:
        raise ConfigError(
            "no policy is trained; accepted: policies_to_train with at least one", key="policies_to_train"
        )
    return jobs


def _train(run: Run, jobs: Jobs, options: CloningOptions, trackers: Sequence[TrackerThread], *, quiet: bool) -> None:
    console = standard_console()

    def say(line: str) -> None:
        if not quiet:
            console.print(line, soft_wrap=True, markup=False, highlight=False)

    for policy_id, job in jobs.items():
        learned, apart = job.num_episodes
        say(f"policy {policy_id}: {counted(learned, 'episode')} to learn from, {apart} for the validation")
    algorithm, losses, every = run.algorithm, dict.fromkeys(jobs, ""), run.config.checkpoints.every
    counters = algorithm.parts.counters
    assert isinstance(algorithm.logger, ResultLogger)
    with progress_bars() as bars, StopOnSignal() as signals:
        bar = None if quiet else bars.add_task("epochs", total=options.epochs)
        while any(not job.is_done for job in jobs.values()):
            measured = {policy_id: job.run_epoch() for policy_id, job in jobs.items() if not job.is_done}
            counters.iteration += 1
            result = iteration_result(IterationReport(), algorithm.parts, algorithm.env.agents)
            for policy_id, metrics in measured.items():
                result["learners"][policy_id] |= metrics
                shown = jobs[policy_id].losses_in(metrics).items()
                words = ", ".join(f"{name} {number(loss, 4)}" for name, loss in shown if loss is not None)
                losses[policy_id] = f"{policy_id} {words}"
            algorithm.logger.write_result(result, algorithm.iteration)
            if bar is not None and not bars.disable:
                bars.update(bar, completed=counters.iteration, description="; ".join(losses.values()))
            else:
                say(f"epoch {counters.iteration} of {options.epochs}: {'; '.join(losses.values())}")
            run.interrupted = signals.received is not None
            is_due = run.interrupted or (bool(every) and counters.iteration % every == 0)
            if is_due and not all(job.is_done for job in jobs.values()):
                _save(run, trackers, jobs)
            if run.interrupted:
                break
    run.stopped_by = signals.received
    run.interrupted &= not all(job.is_done for job in jobs.values())
    for policy_id, job in jobs.items():
        say(f"policy {policy_id}: weights of epoch {job.best_epoch} of {job.epoch}")


def _save(run: Run, trackers: Sequence[TrackerThread], jobs: Jobs | None = None) -> None:
    """Write a checkpoint of the policies.

    Args:
        jobs: what goes on; the policies of the checkpoint have their best weights so far. None: the cloning is done.
    """
    algorithm, settings, folder = run.algorithm, run.config.checkpoints, run.files.checkpoints
    cloning: State = {CLONING: states_of(jobs)} if jobs else {}
    score = {"metric": settings.metric, "value": None, "higher_is_better": settings.mode == "max", "opposed": None}
    about = {**algorithm.about(), "score": score}
    with ExitStack() as stack:
        for job in (jobs or {}).values():
            stack.enter_context(job.finished())
        state, tensors = algorithm.get_state()
    run.checkpoint = folder.save(algorithm.iteration, {**state, **cloning}, tensors, about, settings.keep)
    for each in trackers:
        each.save(folder.path / run.checkpoint)
