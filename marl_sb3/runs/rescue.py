"""Save the policies of a run, also after a failed training, and the traceback of a failure."""

from __future__ import annotations

import logging
from pathlib import Path

from marl_sb3.errors import EnvRaisedError, MarlSb3Error, note_remedy, note_traceback_file
from marl_sb3.learners.bundle import PolicyBundle
from marl_sb3.runs.folder import write_traceback
from marl_sb3.runs.restore import SavedRun
from marl_sb3.runs.run import Run
from marl_sb3.storage.atomic import replaced_folder
from marl_sb3.training.joint_policies import JointPolicies
from marl_sb3.types import PolicyID

_log = logging.getLogger(__name__)


def save_policies(run: Run, policies: JointPolicies | PolicyBundle | None = None) -> dict[PolicyID, Path]:
    """Write an SB3 zip for each policy; the folder is replaced atomically.

    Args:
        policies: those to write; None: the present ones of the run.

    Returns:
        The file of each policy.
    """
    folder = run.files.policies
    with replaced_folder(folder) as unfinished:
        paths = (policies or run.algorithm).save_policies(unfinished)
    return {policy_id: folder / path.name for policy_id, path in paths.items()}


def save_policies_of_complete(run: Run) -> dict[PolicyID, Path]:
    """Save the policies of a run that has its last checkpoint: of the one that `evaluate` and `export` take, too.

    If this fails, the error says how to save them later.
    """
    try:
        name, run.checkpoint_why = run.files.checkpoints.choose() or (run.checkpoint, "")
        if name == run.checkpoint:
            return save_policies(run)
        chosen = SavedRun(run.files, run.config).policies(None, run.algorithm.env)
        run.checkpoint_why = chosen.checkpoint_why
        return save_policies(run, chosen)
    except Exception as error:
        again = f"python -m marl_sb3.export {run.files.shown} --checkpoint latest"
        note_remedy(error, f"checkpoint {run.checkpoint} is complete: {again} writes the policies")
        raise


def try_to_save_policies(run: Run) -> None:
    """Save the policies of a failed training; if this fails too, only log it: the first error is the one to report."""
    if run.algorithm.iteration == 0:
        return
    if not run.algorithm.is_finite():
        _log.warning("the policies are not saved: their weights are not finite")
        return
    try:
        run.policy_files = save_policies(run)
    except Exception as error:  # on a full disk, torch raises various errors
        _log.warning("the policies are not saved: %s", error)


def keep_traceback(run: Run, error: BaseException) -> None:
    """Write the traceback of an error to the run folder, unless its message says enough."""
    if isinstance(error, MarlSb3Error) and not isinstance(error, EnvRaisedError):
        return
    if not isinstance(error, Exception):  # an interruption
        return
    try:
        note_traceback_file(error, str(run.files.as_shown(write_traceback(run.folder, error))))
    except OSError as another:  # a full disk, for example; the first error is the one to report
        _log.warning("the traceback is not kept: %s", another)
