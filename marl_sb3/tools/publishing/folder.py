"""Write a run folder for others and for the Hub: one checkpoint of a run, and a card with its measured returns.

All commands that take a run take it. What only its training needs is left out: logs, replay buffers, other checkpoints.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from marl_sb3.core.config.values import EXTERNAL
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.errors import ConfigError, EnvError
from marl_sb3.evaluation.opponents import RANDOM
from marl_sb3.evaluation.playing import EvaluationPlan, play_episodes
from marl_sb3.extensions.display.video import VideoFile
from marl_sb3.extensions.hub import Address
from marl_sb3.extensions.store.checkpoint_folder import RUN_CONFIG, with_checkpoint
from marl_sb3.extensions.store.checkpoint_format import write_checkpoint
from marl_sb3.files.atomic import replaced_folder, write_whole
from marl_sb3.files.paths import path_is_usable
from marl_sb3.files.regular import read_regular
from marl_sb3.results.result_log import RESULT_FILE, read_results
from marl_sb3.runs.building import make_envs
from marl_sb3.runs.evaluate import EvaluatedRun, evaluate_run
from marl_sb3.runs.run import SavedRun
from marl_sb3.tools.publishing.card import Measured, card_text

_log = logging.getLogger(__name__)

CARD = "README.md"
_NAME = re.compile(r"ckpt-[0-9]{6,12}")


def write_run_folder(
    run: SavedRun,
    checkpoint: str | None,
    out: Path,
    env: str | None = None,
    *,
    address: Address | None = None,
    episodes: int = 20,
    references: Mapping[str, float] | None = None,
    force: bool = False,
) -> Checkpoint:
    """Write the folder: `config.yaml`, `result.jsonl`, the checkpoint, `README.md`, and a film if the env draws itself.

    Args:
        run: whose checkpoint it is.
        checkpoint: which; see `CheckpointFolder.load`.
        out: new or empty folder; or one that this has written, with `force`.
        env: the run's env, as the user names it.
        address: of the run on the Hub, for the card; None: it stays a folder.
        episodes: complete ones, played for the card and filmed; 0: none, the card has what the training logged.
        references: other sums of returns for the card by name, from elsewhere.

    Returns:
        The checkpoint.

    Raises:
        ConfigError: there is something else, the checkpoint is a member of a league, or the env cannot be made.
        CheckpointError: there is no such checkpoint, or it is damaged.
        EnvError: the env broke the `ParallelEnv` contract.
    """
    with ExitStack() as cleanup:
        with path_is_usable("--out: cannot write to", out, "out"):
            there = {each.name for each in out.iterdir()} if out.is_dir() else set()
            if there and not force:
                raise ConfigError(f"{out} exists already; --force replaces it", key="out")
            if (there or out.exists()) and not {RUN_CONFIG, CARD} <= there and (there or not out.is_dir()):
                words = f"--out: {out} is something else"
                raise ConfigError(f"{words}; accepted: a new folder, or one of an export", key="out")
            fresh = cleanup.enter_context(replaced_folder(out))
        found = with_checkpoint(lambda: run.find(checkpoint), lambda found: _copied(found, fresh))
        write_whole(fresh / RUN_CONFIG, read_regular(run.files.config_file))
        iteration = found.about.integer("iteration")
        results = [each for each in read_results(run.files.path) if each["iteration"] <= iteration]
        lines = "".join(f"{json.dumps(each, allow_nan=False)}\n" for each in results)
        write_whole(fresh / RESULT_FILE, lines)
        written = SavedRun.open(fresh, env, makes_env=episodes > 0)
        measured = _measured(written, episodes, fresh) or Measured.of_training(flatten(results[-1]) if results else {})
        write_whole(fresh / CARD, card_text(written.config, found, measured, address, references or {}))
    return found


def _copied(found: Checkpoint, folder: Path) -> Checkpoint:
    """Write a checkpoint anew without its replay buffers; its files have been verified."""
    if not _NAME.fullmatch(found.name):
        words = f"{found.folder} is a member of a league"
        raise ConfigError(f"{words}; accepted: a run, or a checkpoint in `checkpoints/`", key="run")
    tensors = {name: group.load() for name, group in found.tensors.items() if not name.startswith("replay-")}
    write_checkpoint(folder / "checkpoints" / found.name, found.state, tensors, found.about.values())
    return found


# --- What it is worth ------------------------------------------------------------------------------------------------


def _measured(run: SavedRun, episodes: int, folder: Path) -> Measured | None:
    """Let the policies and random agents play the same episodes; None if none are to be played.

    Where the agents' returns oppose each other, the policies play against random agents, on each side.
    """
    if not episodes or run.config.env == EXTERNAL:
        return None
    plan = EvaluationPlan.of_run(run.config, episodes, film_episodes=1)
    if run.files.checkpoints.opposed() is not None:
        plan = replace(plan, against=RANDOM)
    played, film = _filmed(run, plan, folder)
    if plan.against is not None:
        return Measured.of_seats(played, film)
    with closing(make_envs(run.config, n_envs=plan.n_envs, seed=plan.seed)) as env:
        at_random = play_episodes(run.policies(None, env), env, plan.n_episodes, seed=plan.seed, acting=())
    return Measured.of_episodes(played, at_random, film)


def _filmed(run: SavedRun, plan: EvaluationPlan, folder: Path) -> tuple[EvaluatedRun, str | None]:
    """Evaluate a run; if its env draws itself, with a film of the first episode."""
    name = "replay.mp4" if find_spec("imageio_ffmpeg") else "replay.gif"
    try:
        with VideoFile(folder / name) as video:
            return evaluate_run(run, plan, video=video), name
    except (ConfigError, EnvError) as error:
        _log.info("no film: %s", error)
    return evaluate_run(run, replace(plan, film_episodes=0)), None
