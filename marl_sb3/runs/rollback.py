"""Bring a run back to one of its checkpoints: its algorithm and its logs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
from stable_baselines3.common.utils import set_random_seed

from marl_sb3.errors import NumericError
from marl_sb3.runs.logs.truncate import truncate_logs
from marl_sb3.runs.run import Run
from marl_sb3.storage.checkpoint_format import Checkpoint
from marl_sb3.storage.state import StateReader

_log = logging.getLogger(__name__)


MAX_ROLLBACKS = 3


def roll_back(run: Run, count: int, error: NumericError) -> None:
    """Go back to the latest checkpoint, with other random numbers.

    Args:
        run: as it is now.
        count: of the rollbacks of this training, with this one.
        error: what makes it necessary.
    """
    checkpoint = run.files.checkpoints.load("latest")
    _log.warning("%s", error)
    _log.warning("rollback %d of %d, to %s, with other random numbers", count, MAX_ROLLBACKS, checkpoint.name)
    run.checkpoint = checkpoint.name
    note_resume(run, bring_back(run, checkpoint))
    # The same numbers would lead to the same fault.
    assert run.config.seed is not None, "prepare() has drawn one"
    set_random_seed(int(np.random.SeedSequence(run.config.seed, spawn_key=(count, count)).generate_state(1)[0]))


def bring_back(run: Run, checkpoint: Checkpoint) -> dict[str, str]:
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


def note_resume(run: Run, inexact: Mapping[str, str], extended_from: int | None = None) -> None:
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
