"""Go on with a run from its newest checkpoint."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from marl_sb3.config.extensions import continued, is_complete, phases_after
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.runs.build import build, check_device, set_up_process
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
    before = files.read_config(env)
    with ExitStack() as on_error:
        files.lock()
        on_error.callback(files.unlock)
        checkpoint = files.checkpoints.load("latest")
        env_steps = StateReader(checkpoint.state).fields("counters").integer("num_timesteps")
        config = continued(before, env_steps, timesteps, changes)
        check_device(config)
        set_up_process(config)
        run = Run(files, config, build(config, factory), checkpoint=checkpoint.name, factory=factory)
        on_error.callback(run.close)
        require_metrics(run)
        inexact = bring_back(run, checkpoint)
        if not is_complete(config, env_steps):  # otherwise nothing follows
            planned = phases_after(before, env_steps)[0].n_timesteps
            with files.writing():
                files.write_config(config)
                note_resume(run, inexact, planned if timesteps is not None else None)
        on_error.pop_all()
    return run
