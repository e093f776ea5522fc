"""Prepare a new run: build it, check it, and make its folder."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from marl_sb3.config import TrainConfig, to_yaml
from marl_sb3.config.ray import RaySettings
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.runs.build import build_new, check_device, resolved, set_up_process, source_named, with_shards
from marl_sb3.runs.evaluations import require_metrics
from marl_sb3.runs.folder import RunFolder, find_run
from marl_sb3.runs.run import Run
from marl_sb3.transfer.init_from import InitFrom, parse_init_from
from marl_sb3.transfer.init_from import init_from as start_from

_log = logging.getLogger(__name__)


def prepare(
    config: TrainConfig,
    run_dir: str | Path | None = None,
    factory: EnvFactory | None = None,
    *,
    trust_pickle: bool = False,
    ray: RaySettings | None = None,
) -> Run:
    """Build everything, check everything, then make the run folder.

    Args:
        config: the configuration; a missing seed is drawn.
        run_dir: the folder; it must be empty or not exist. None: `runs/<env>/<UTC time>-<4 hex>`.
        factory: makes the env, if the id in the configuration is only its name.
        trust_pickle: allow SB3 zips in `init_from`. It is not a setting, so that no file can allow it.
        ray: how the shards are rolled out on Ray; None: not on Ray.

    Raises:
        ConfigError: a setting does not fit; nothing has been written then.
        CheckpointError: a checkpoint in `init_from` is damaged, or there is none.
    """
    files = RunFolder.new(config.env, run_dir)
    run = _checked(config, files, factory, trust_pickle, ray)
    with ExitStack() as on_error:
        on_error.callback(run.close)
        files.make(run.config)
        on_error.pop_all()
    return run


def resolve(config: TrainConfig, *, trust_pickle: bool = False, ray: RaySettings | None = None) -> TrainConfig:
    """Return the configuration that a run would have, with all defaults; everything is checked as in `prepare`.

    Nothing is written. The arguments and errors are those of `prepare`.
    """
    with closing(_checked(config, RunFolder.new(config.env, None), None, trust_pickle, ray)) as run:
        return run.config


def _checked(
    config: TrainConfig, files: RunFolder, factory: EnvFactory | None, trust_pickle: bool, ray: RaySettings | None
) -> Run:
    """Build a run and check everything; its folder is not made."""
    config = _with_found_sources(resolved(config if ray is None else with_shards(config)))
    for note in config.notes:
        _log.warning("%s", note)
    check_device(config)
    set_up_process(config)
    config, algorithm = build_new(config, factory, ray)
    run = Run(files, config, algorithm, factory=factory)
    with ExitStack() as on_error:
        on_error.callback(run.close)
        require_metrics(run)
        _start_from(run, trust_pickle)
        with source_named(config):
            run.algorithm.start_runners()
        to_yaml(config)  # raises for a value that a file cannot hold
        on_error.pop_all()
    return run


def _with_found_sources(config: TrainConfig) -> TrainConfig:
    """Replace folders of runs in `init_from` by their newest run: later, another run may be the newest."""
    if config.init_from is None:
        return config
    with source_named(config, "init_from"):
        found = [str(_with_found_run(parse_init_from(text))) for text in config.init_from]
    return replace(config, init_from=found)


def _with_found_run(source: InitFrom) -> InitFrom:
    is_checkpoint_or_run = any((source.path / name).exists() for name in ("manifest.json", "checkpoints"))
    if is_checkpoint_or_run or not source.path.is_dir():
        return source
    return replace(source, path=find_run(source.path))


def _start_from(run: Run, trust_pickle: bool) -> None:
    with source_named(run.config, "init_from"):
        sources = [parse_init_from(text) for text in run.config.init_from or ()]
        run.started_from = start_from(run.algorithm, sources, run.config.init_layers, trust_pickle=trust_pickle)
