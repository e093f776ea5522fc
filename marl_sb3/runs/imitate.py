"""`marl_sb3.imitate(...)`: train the policies of a new run to act as recorded episodes do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from marl_sb3.config import Hparams, TrainConfig, load_config
from marl_sb3.config.algorithms import AlgorithmInfo
from marl_sb3.config.settings import require_kinds
from marl_sb3.config.values import counted
from marl_sb3.display.screen import standard_console
from marl_sb3.display.tables import progress_bars
from marl_sb3.display.text import number
from marl_sb3.envs.registry import EnvFactory, named_factory
from marl_sb3.errors import ConfigError, as_path
from marl_sb3.experience.demonstrations import require_episodes
from marl_sb3.learners.cloning import Cloning, CloningOptions
from marl_sb3.learners.recorded_data import read_data
from marl_sb3.learners.registry import named_algorithm
from marl_sb3.learners.threads import limited_threads
from marl_sb3.metrics import Result
from marl_sb3.runs.build import source_named
from marl_sb3.runs.execute import save_policies_of_complete
from marl_sb3.runs.folder import undone_on_error
from marl_sb3.runs.logs import logs_of
from marl_sb3.runs.run import Run
from marl_sb3.runs.start import prepare
from marl_sb3.runs.view import print_files
from marl_sb3.training.loop import IterationReport
from marl_sb3.training.results import ResultLogger, iteration_result
from marl_sb3.training.setup import derived_seed
from marl_sb3.types import PolicyID

_log = logging.getLogger(__name__)


def imitate(
    data: str | Path,
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
    device: str | None = None,
    run_dir: str | Path | None = None,
    progress_bar: bool = True,
) -> Run:
    """Train policies to act as recorded episodes do, as `python -m marl_sb3.imitate` does: behaviour cloning.

    Each policy learns the actions of its agents. The run that this returns has a checkpoint of the policies, which
    `evaluate`, `export` and `train(init_from=...)` take; no env step was trained.

    Args:
        data: a folder of recorded episodes, or of a Minari dataset.
        env: the env that they are of; None takes the only env in `hparams`.
        policies: see `marl_sb3.train`; the same for `algo`, `settings`, `hparams`, `device` and `run_dir`.
        seed: seed of the run, of the initial weights and of the order of the data. None: the run draws one.
        epochs: see `CloningOptions`; the same for the arguments up to `entropy_coefficient`.
        progress_bar: print the progress and the files. False: nothing is printed.

    Raises:
        ConfigError: a setting is wrong, or a policy cannot learn from the data; nothing has been written.
        NumericError: a loss is not finite.
    """
    require_kinds(hparams, settings)
    options = CloningOptions(epochs, batch_size, learning_rate, validation, patience, entropy_coefficient)
    name, factory = named_factory(env)
    algo = None if algo is None else named_algorithm(algo)
    config = load_config(name, algo, hparams, settings, policies=policies, seed=seed, device=device)
    return clone(config, as_path("data", data), options, run_dir, factory, quiet=not progress_bar)


def clone(
    config: TrainConfig,
    data: Path,
    options: CloningOptions,
    run_dir: str | Path | None = None,
    factory: EnvFactory | None = None,
    *,
    trust_pickle: bool = False,
    quiet: bool = False,
) -> Run:
    """Make a run of policies that act as recorded episodes do; the arguments are those of `prepare` and `imitate`.

    Returns:
        The run, which is closed. An interruption ends the passes over the data: the best weights so far are saved.
    """
    run = prepare(config, run_dir, factory, trust_pickle=trust_pickle, makes_folder=False)
    with ExitStack() as cleanup:
        cleanup.callback(run.close)
        with source_named(run.config):
            jobs = _jobs(run, data, options)
        run.files.make(run.config)
        remark = (
            f"its policies were cloned from {data} by imitate with {options}; training from this file clones nothing"
        )
        run.files.write_config(run.config, remark)
        with limited_threads(run.config.n_threads), logs_of(run):
            _train(run, jobs, options, quiet=quiet)
        for job in jobs.values():
            job.finish()
        with undone_on_error(lambda: _log.warning("no checkpoint was written")):
            run.checkpoint = _save(run)
        run.policy_files = save_policies_of_complete(run)
    if not quiet:
        print_files(standard_console(), run, "python -m marl_sb3.evaluate")
    return run


def _jobs(run: Run, data: Path, options: CloningOptions) -> dict[PolicyID, Cloning]:
    """Return the cloning of each policy that is trained.

    Raises:
        ConfigError: a policy cannot learn from the data.
    """
    assert run.config.seed is not None, "prepare() has drawn one"
    jobs: dict[PolicyID, Cloning] = {}
    sets = read_data(data)
    for index, (policy_id, learner) in enumerate(run.algorithm.parts.learners.items()):
        if learner.trained:
            seed = derived_seed(run.config.seed, 1000 + index)
            jobs[policy_id] = Cloning(learner, require_episodes(sets, learner.rows, data), options, seed)
    if not jobs:
        raise ConfigError(
            "no policy is trained; accepted: policies_to_train with at least one", key="policies_to_train"
        )
    return jobs


def _train(run: Run, jobs: Mapping[PolicyID, Cloning], options: CloningOptions, *, quiet: bool) -> None:
    console = standard_console()

    def say(line: str) -> None:
        if not quiet:
            console.print(line, soft_wrap=True, markup=False, highlight=False)

    for policy_id, job in jobs.items():
        learned, apart = job.num_episodes
        say(f"policy {policy_id}: {counted(learned, 'episode')} to learn from, {apart} for the validation")
    counters, losses = run.algorithm.parts.counters, dict.fromkeys(jobs, "")
    with progress_bars() as bars:
        bar = None if quiet else bars.add_task("epochs", total=options.epochs)
        while any(not job.is_done for job in jobs.values()):
            try:
                measured = {policy_id: job.run_epoch() for policy_id, job in jobs.items() if not job.is_done}
            except KeyboardInterrupt:
                if not counters.iteration:
                    raise
                run.interrupted = True
                break
            counters.iteration += 1
            _write(run, measured)
            losses |= {policy_id: _words(policy_id, metrics) for policy_id, metrics in measured.items()}
            if bar is not None and not bars.disable:
                bars.update(bar, completed=counters.iteration, description="; ".join(losses.values()))
            else:
                say(f"epoch {counters.iteration} of {options.epochs}: {'; '.join(losses.values())}")
    for policy_id, job in jobs.items():
        say(f"policy {policy_id}: weights of epoch {job.best_epoch} of {job.epoch}")


def _words(policy_id: PolicyID, metrics: Result) -> str:
    apart = metrics["imitation_loss_validation"]
    return f"{policy_id} loss {number(metrics['imitation_loss'], 4)}" + (
        "" if apart is None else f", validation {number(apart, 4)}"
    )


def _write(run: Run, measured: Mapping[PolicyID, Result]) -> None:
    """Log a pass over the data as an iteration without env steps."""
    algorithm = run.algorithm
    result = iteration_result(IterationReport(), algorithm.parts, algorithm.env.agents)
    result["learners"] = {name: {**own, **measured.get(name, {})} for name, own in result["learners"].items()}
    assert isinstance(algorithm.logger, ResultLogger)
    algorithm.logger.write_result(result, algorithm.iteration)


def _save(run: Run) -> str:
    algorithm, settings = run.algorithm, run.config.checkpoints
    score = {"metric": settings.metric, "value": None, "higher_is_better": settings.mode == "max", "opposed": None}
    about = {**algorithm.about(), "score": score}
    return run.files.checkpoints.save(algorithm.iteration, *algorithm.get_state(), about, settings.keep)
