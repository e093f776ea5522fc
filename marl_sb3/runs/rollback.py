"""Return a run to one of its checkpoints: the state of its algorithm, and its logs."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np
from stable_baselines3.common.utils import set_random_seed

from marl_sb3.errors import NumericError
from marl_sb3.runs.logs.truncate import truncate_logs
from marl_sb3.runs.run import Run
from marl_sb3.storage.atomic import write_whole
from marl_sb3.storage.checkpoint_format import Checkpoint
from marl_sb3.storage.regular import read_regular
from marl_sb3.storage.state import StateReader

_log = logging.getLogger(__name__)


MAX_ROLLBACKS = 3


def roll_back(run: Run, count: int, error: NumericError) -> None:
    """Return to the latest checkpoint, and continue from there with other random numbers.

    Args:
        count: the number of rollbacks of this training, including this one.
    """
    checkpoint = run.files.checkpoints.load("latest")
    _log.warning("%s", error)
    _log.warning("rollback %d of %d, to %s, with other random numbers", count, MAX_ROLLBACKS, checkpoint.name)
    run.checkpoint = checkpoint.name
    run.changes = {}  # they were noted when the run was resumed
    note_resume(run, bring_back(run, checkpoint))
    # The same random numbers would lead to the same error.
    assert run.config.seed is not None, "prepare() has drawn one"
    set_random_seed(int(np.random.SeedSequence(run.config.seed, spawn_key=(count, count)).generate_state(1)[0]))


def bring_back(run: Run, checkpoint: Checkpoint) -> dict[str, str]:
    """Restore the state of a checkpoint, and truncate the logs to its iteration.

    Returns:
        Part -> reason, for each part of the state that could not be restored exactly.

    Raises:
        CheckpointError: the checkpoint does not fit the run.
        ConfigError: a log is damaged, or the folder cannot be written to.
    """
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
    """Add a resume to `resumes.jsonl`, which is replaced as a whole.

    Args:
        run: in the state of its checkpoint.
        inexact: what `bring_back` returned.
        extended_from: the planned end, in env steps, before `--timesteps` moved it; None: it was not moved.
    """
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "checkpoint": run.checkpoint,
        "exact": not inexact and not run.is_changed,
        "inexact": dict(inexact),
        "changed": {name: {"from": change.old, "to": change.new} for name, change in run.changes.items()},
        "env_steps": run.algorithm.num_timesteps,
        "n_timesteps": run.config.n_timesteps,
        "extended_from": extended_from,
    }
    resumes = run.files.resumes
    former = read_regular(resumes) if os.path.lexists(resumes) else b""
    write_whole(resumes, former + f"{json.dumps(entry)}\n".encode())


def _require_same_number_of_envs(run: Run, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint of another number of envs: it could be loaded, but would not continue the same run."""
    state, ours = StateReader(checkpoint.state), run.algorithm.env.num_envs
    if state.integer("num_envs") != ours:
        raise state.error("num_envs", state.integer("num_envs"), str(ours))
