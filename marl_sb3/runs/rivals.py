"""Who is named to play: a run, one of its checkpoints, a member of its league, or an opponent of code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.config.values import EXTERNAL
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.errors import CheckpointError, ConfigError, shown
from marl_sb3.evaluation.opponents import OPPONENTS, RANDOM, Rival, is_code, of_policy
from marl_sb3.extensions.hub import local_folder
from marl_sb3.extensions.store.checkpoint_folder import find_checkpoint, with_checkpoint
from marl_sb3.extensions.store.checkpoint_format import MANIFEST
from marl_sb3.extensions.store.load import load_policies, member_policy
from marl_sb3.files.atomic import UNFINISHED
from marl_sb3.files.regular import require_folder
from marl_sb3.runs.folder import LEAGUE, Member, RunFolder, find_run, members_of, run_around
from marl_sb3.runs.run import SavedRun
from marl_sb3.runs.schema import TrainConfig

_LONGEST_NAME = 32  # of longer paths, the last part is shown
_CODE = f"{RANDOM}, {', '.join(OPPONENTS.names())}, or MODULE:CLASS"
_ACCEPTED = f"a run folder, a checkpoint, a member of a league, {_CODE}"


def require_playable(config: TrainConfig, where: str = "") -> None:
    """Refuse the configuration of a run whose env cannot be made, since clients step it.

    Args:
        where: said first in the message.
    """
    if config.env == EXTERNAL:
        words = f"{where}clients step the env of this run, so that no episode can be played in it"
        raise ConfigError(f"{words}; accepted: --env ENV (env=) with the same agents and spaces", key="env")


def player_at(run: SavedRun, path: str | Path, env: MultiAgentVecEnv) -> PolicyBundle:
    """Load a checkpoint of a run; or of a member of its league the one policy that it is, for all that it may play.

    Raises:
        CheckpointError: it is damaged, or does not fit the run's configuration.
    """
    bundle = with_checkpoint(lambda: find_checkpoint(path), lambda found: run.read(found, env))
    own = member_policy(str(bundle.checkpoint), bundle.policies)
    return bundle if own is None else replace(of_policy(bundle, own), checkpoint=bundle.checkpoint)


def short_name(path: str | Path) -> str:
    """Return what a run or a checkpoint is called on a picture."""
    text = str(path).rstrip("/")
    return text if len(text) <= _LONGEST_NAME else Path(text).name


def rival_of(who: str, run: SavedRun, env: str | None = None, copy: Path | None = None) -> Rival:
    """Return the rival that a command line names; it is loaded later.

    Args:
        who: a run folder, or a folder of runs; a checkpoint, or a member of a league; `random`; a name in `OPPONENTS`;
            or `MODULE:CLASS`.
        run: that it plays against.
        env: the env that the user names for both.
        copy: the verified copy of a path, which is read instead; None: the path is.

    Raises:
        ConfigError: it is none of these, or of a run of another env.
    """
    path = local_folder(who) if copy is None else copy
    if not path.exists():
        if not is_code(who):
            raise ConfigError(f"opponent {shown(who)}: there is no such path; accepted: {_ACCEPTED}", key="against")
        return Rival(who, lambda _: who)
    around = run_around(path)
    if around is None and (path / MANIFEST).exists():  # of an algorithm, without a run
        return Rival(short_name(who), partial(load_policies, path, None, None, "cpu"))
    files = RunFolder(find_run(path if around is None else around))
    # Its env is not made here, and the settings of the process are those of the run that it plays against.
    settings = files.read_config(makes_env=False).changed({"device": "cpu"}, source=str(path))
    other = SavedRun(files, settings)
    if env is None and other.config.env != run.config.env:
        words = f"{who} is a run of {shown(other.config.env)}, {run.files.shown} one of {shown(run.config.env)}"
        raise ConfigError(
            f"{words}; accepted: runs of one env, or --env ENV with one that both can play", key="against"
        )
    if around is None:
        return Rival(short_name(who), partial(other.policies, None))
    is_own = path.absolute().is_relative_to(run.files.path)
    name = path.absolute().relative_to(run.files.path).as_posix() if is_own else short_name(who)
    return Rival(name, partial(player_at, other, path))


def rivals_in(run: SavedRun) -> list[Rival]:
    """Return who is there to play against a run: the members of its league, its checkpoints, and random agents.

    Raises:
        CheckpointError: the folder of one of them cannot be read.
    """
    league, listed = run.files.path / LEAGUE, dict[str, Member]()
    with suppress(ConfigError):  # its members are there without their ratings
        listed = members_of(run.files.path)
    about = {name: f"rating {each.rating:.0f}" for name, each in listed.items() if each.rating is not None}
    members = [
        Rival(f"{LEAGUE}/{name}", partial(player_at, run, league / name), about.get(name, ""))
        for name in _members(league)
    ]
    whole = replace(run, at=None)  # a checkpoint of it may have been named
    which = ["latest", "best", *(str(int(name.rpartition("-")[2])) for name in run.files.checkpoints.names()[::-1])]
    return [
        *members,
        *(Rival(f"checkpoint {each}", partial(whole.policies, each)) for each in which),
        Rival(RANDOM, lambda _: RANDOM),
    ]


def _members(league: Path) -> list[str]:
    """Return the members of a league, which are checkpoints; none if there is no league."""
    if not league.exists():
        return []
    try:
        require_folder(league)
        folders = [each.name for each in league.iterdir() if each.is_dir() and not each.is_symlink()]
    except OSError as error:
        raise CheckpointError(f"cannot read {league}: {error.strerror}") from error
    found = [name for name in folders if not name.startswith(UNFINISHED)]  # a training may be writing
    return sorted(found, key=lambda name: [part.zfill(12) for part in re.split(r"(\d+)", name)])


def named_apart(rivals: Iterable[Rival], taken: str) -> list[Rival]:
    """Return rivals with different names, none of which is taken."""
    found, names = [], {taken}
    for rival in rivals:
        name, number = rival.name, 1
        while name in names:
            number += 1
            name = f"{rival.name} ({number})"
        found.append(replace(rival, name=name))
        names.add(name)
    return found
