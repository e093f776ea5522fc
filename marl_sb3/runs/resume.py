"""Continue a run from its newest checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from marl_sb3.config import load_config, parse_value, to_yaml
from marl_sb3.config.changes import changes_between
from marl_sb3.config.extensions import continued, is_complete, phases_after
from marl_sb3.config.ray import RaySettings
from marl_sb3.config.values import counted
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.errors import ConfigError
from marl_sb3.runs.build import build, check_device, set_up_process, source_named
from marl_sb3.runs.evaluations import require_metrics
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.rollback import bring_back, note_resume
from marl_sb3.runs.run import Run
from marl_sb3.storage.state import StateReader


def resume_run(
    run_folder: str | Path,
    timesteps: int | None = None,
    env: str | None = None,
    factory: EnvFactory | None = None,
    ray: RaySettings | None = None,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """Restore a run from its newest checkpoint; `execute` then continues it exactly.

    Log entries after that checkpoint are removed. A complete run stays as it is.

    Args:
        timesteps: env steps to train for from the checkpoint on; None: to the planned end. With `timesteps`,
            schedules such as `lin_3e-4` lead to the new end, so that they jump at the checkpoint. `extensions` in
            `config.yaml` keeps the former end, so that a training from that file repeats the whole run.
        env: the run's env id; required if it is code of the user's own.
        factory: makes the env, if the id is only its name.
        ray: how the shards are rolled out on Ray, whatever it was before; None: not on Ray.
        settings: new values of settings by key, as after `--set`; the run goes on with them, and is then another one
            than without. They are noted in `resumes.jsonl` and at the beginning of `config.yaml`.
        changes: new values of settings that do not affect what was trained so far.

    Raises:
        ConfigError: it is not a run folder, it is in use, or a change is not accepted.
        CheckpointError: it has no valid checkpoint, or that does not fit its configuration.
    """
    files = RunFolder.existing(run_folder)
    with ExitStack() as on_error:
        files.lock()
        on_error.callback(files.unlock)
        files.require_own_files()
        before = files.read_config(env)
        other = before
        if settings:
            other = load_config(before.env, hparams=parse_value(to_yaml(before)), settings=settings)
        changed = changes_between(before, other)
        checkpoint = files.checkpoints.load("latest")
        env_steps = StateReader(checkpoint.state).fields("counters").integer("num_timesteps")
        config = continued(other, env_steps, timesteps, changes)
        if ray is not None and not config.n_shards:
            raise ConfigError("the run was begun without shards (n_shards is 0), which Ray needs", key="n_shards")
        check_device(config)
        set_up_process(config)
        goes_on = not is_complete(config, env_steps)  # otherwise nothing will be trained
        run = Run(files, config, build(config, factory, ray), checkpoint=checkpoint.name, factory=factory)
        run.changes = changed if goes_on else {}
        on_error.callback(run.close)
        require_metrics(run)
        with source_named(config):
            run.algorithm.start_runners()
        inexact = bring_back(run, checkpoint)
        if goes_on:
            planned = phases_after(before, env_steps)[0].n_timesteps
            with files.writing():
                note_resume(run, inexact, planned if timesteps is not None else None)
                files.write_config(config, remark_on_changes(run))
        on_error.pop_all()
    return run


def remark_on_changes(run: Run) -> str | None:
    """Return a line about the settings that a resume has changed; None if what is learned does not depend on any."""
    if not run.is_changed:
        return None
    changes = ", ".join(f"{name} {change}" for name, change in run.changes.items())
    done = counted(run.algorithm.num_timesteps, "env step")
    return f"changed after {done}: {changes}; from there on the run is not exact"
