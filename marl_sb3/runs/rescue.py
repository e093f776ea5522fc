"""Save the policies of a run; and what can be saved of one whose training failed."""

from __future__ import annotations

import logging
from pathlib import Path

from marl_sb3.errors import EnvRaisedError, MarlSb3Error, note_remedy, note_traceback_file
from marl_sb3.runs.folder import write_traceback
from marl_sb3.runs.run import Run
from marl_sb3.storage.atomic import replaced_folder
from marl_sb3.types import PolicyID

_log = logging.getLogger(__name__)


def save_policies(run: Run) -> dict[PolicyID, Path]:
    """The policies' folder appears whole or not at all."""
    folder = run.files.policies
    with replaced_folder(folder) as unfinished:
        paths = run.algorithm.save_policies(unfinished)
    return {policy_id: folder / path.name for policy_id, path in paths.items()}


def save_policies_of_complete(run: Run) -> dict[PolicyID, Path]:
    """Save the policies of a run whose checkpoint is written; if this fails, say that nothing is lost."""
    try:
        return save_policies(run)
    except Exception as error:
        again = f"python -m marl_sb3.export {run.folder} --checkpoint latest"
        note_remedy(error, f"checkpoint {run.checkpoint} is complete: {again} writes the policies")
        raise


def try_to_save_policies(run: Run) -> None:
    """Save what was learned before the training failed; if this fails too, it is not the error to be told."""
    if run.algorithm.iteration == 0:
        return
    if not run.algorithm.is_finite():
        _log.warning("the policies are not saved: their weights are not finite")
        return
    try:
        run.policy_files = save_policies(run)
    except Exception as error:  # torch raises errors of its own where a disk is full
        _log.warning("the policies are not saved: %s", error)


def keep_traceback(run: Run, error: BaseException) -> None:
    """Keep the traceback of an error that does not say all of it in its message."""
    if isinstance(error, MarlSb3Error) and not isinstance(error, EnvRaisedError):
        return
    if not isinstance(error, Exception):  # an interruption
        return
    try:
        note_traceback_file(error, str(write_traceback(run.folder, error)))
    except OSError as another:  # on a full disk, say; it is not the error to be told
        _log.warning("the traceback is not kept: %s", another)
