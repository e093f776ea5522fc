"""The checkpoints of a run: write, keep the newest and the best, find one."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from marl_sb3.core.state.checkpoint import Checkpoint, Tensors
from marl_sb3.core.state.state import State, StateReader, TensorFile
from marl_sb3.doors import Store
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.extensions.store.checkpoint_format import MANIFEST, read_checkpoint, read_manifest, write_checkpoint
from marl_sb3.files.atomic import remove_folder, remove_unfinished
from marl_sb3.files.paths import as_path, folder_name
from marl_sb3.files.regular import is_regular, require_folder

_log = logging.getLogger(__name__)
T = TypeVar("T")

RUNS = Path("runs")  # parent of all run folders without --run-dir
RUN_CONFIG = "config.yaml"  # a folder with this file is a run folder
_MOST_LISTINGS = 100  # of a folder whose checkpoints vanish while they are read
_NAME = re.compile(r"ckpt-([0-9]{6,12})")


def runs_of(env: str) -> Path:
    """Return the folder in which runs of an env are made without `--run-dir`."""
    return RUNS / folder_name(env)


class CheckpointFolder:
    """The checkpoints of a run: the newest ones, and the best.

    Args:
        path: the folder of the checkpoints; the first `save` makes it.
        may_be_link: whether reading follows a link at `path`; not in a run folder, whose content is untrusted.
    """

    def __init__(self, path: Path, *, may_be_link: bool = True) -> None:
        self.path = path
        self._may_be_link = may_be_link

    def names(self) -> list[str]:
        """Names of all checkpoints, including damaged ones, oldest first; none if there is no such folder.

        Raises:
            CheckpointError: the folder cannot be read.
        """
        try:
            if not self._may_be_link:
                require_folder(self.path)
            found = [entry.name for entry in os.scandir(self.path) if _NAME.fullmatch(entry.name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"cannot read {self.path}: {error.strerror}") from error
        return sorted(found, key=_iteration)

    def save(self, iteration: int, state: State, tensors: Tensors, about: Mapping[str, Any], keep: int) -> str:
        """Write a checkpoint, then remove all but the newest `keep` and the best.

        The best is told by `about["score"]`: the name of a `metric`, its `value` or None, and `higher_is_better`.

        Returns:
            The name of the checkpoint.

        Raises:
            NumericError: an array is not finite.
            OSError: the disk is full or failing; the earlier checkpoints are unchanged.
        """
        remove_unfinished(self.path)  # what a killed process has left; no other process may be writing
        name = f"ckpt-{iteration:06d}"
        write_checkpoint(self.path / name, state, tensors, about)
        # Checkpoints of later iterations are damaged (the run did not resume from them) and do not count here.
        earlier, best = [each for each in self.names() if _iteration(each) <= iteration], self.best()
        for old in earlier[:-keep]:
            if old != best:
                remove_folder(self.path / old)
        return name

    def load(self, which: str | None = "latest") -> Checkpoint:
        """Read a checkpoint; a damaged one is skipped with a warning, and the next best or next newest is read.

        Args:
            which: `latest`, `best`, or the number of an iteration, which has no replacement. None: the best; or the
                latest, where a sum of returns decides which is the best and the agents' returns oppose each other, as
                the newest checkpoint says: the sum does not tell then how good the policies are.

        Raises:
            CheckpointError: there is no such checkpoint, or no valid one.
        """
        if which not in ("latest", "best", None):
            return read_checkpoint(self.path / self._by_number(which))
        for _ in range(_MOST_LISTINGS):
            for name, why in self._candidates(which):
                try:
                    return replace(read_checkpoint(self.path / name), why=why)
                except CheckpointError as error:
                    if not os.path.lexists(self.path / name):
                        break  # a running training has removed it and has written another: list them again
                    _log.warning("%s; passed over", error)
            else:
                break
        why = "" if self.names() else ": the run ended before its first"
        again = f"train --hparams {self.path.parent / 'config.yaml'} starts it anew"
        raise CheckpointError(f"{self.path} holds no valid checkpoint{why}; {again}")

    def _by_number(self, which: str) -> str:
        names = self.names()
        for name in names:
            if which == name or (which.isdecimal() and len(which) < 13 and int(which) == _iteration(name)):
                return name
        there = ", ".join(str(_iteration(name)) for name in names) or "none"
        raise CheckpointError(f"{self.path} has no checkpoint {which!r}; accepted: best, latest, or one of {there}")

    def choose(self, which: str | None = None) -> tuple[str, str] | None:
        """The name of the checkpoint that `load` reads first, and why; None if there is none.

        Reads the manifests only.

        Args:
            which: see `load`; no number.
        """
        return next(iter(self._candidates(which)), None)

    def _candidates(self, which: str | None) -> list[tuple[str, str]]:
        """The checkpoints to try, in this order, and a sentence about each that says why it is taken."""
        newest_first = self.names()[::-1]
        if which == "latest":
            return [(name, "") for name in newest_first]
        best_first = self._scores()
        unfit = _newest(best_first).unfit if best_first else None
        if unfit is not None and which is None:
            reason = f"{unfit}, so that {best_first[0].metric} does not show which is the best"
            return [(name, f"{name} is the latest: {reason}") for name in newest_first]
        but = "" if unfit is None else f"; but {unfit}"
        best = [(score.name, f"{score.name} is the best by {score}{but}") for score in best_first]
        without = [name for name in newest_first if name not in dict(best)]
        return [*best, *((name, f"{name} is the latest: no value says which is the best") for name in without)]

    def best(self) -> str | None:
        """The name of the checkpoint with the best score; None if none has a score. Reads the manifests only."""
        return next((score.name for score in self._scores()), None)

    def opposed(self) -> str | None:
        """How the agents' returns oppose each other, as the newest checkpoint with a score says; None if they do not.

        Reads the manifests only.
        """
        scores = self._scores()
        return _newest(scores).opposed if scores else None

    def _scores(self) -> list[_Score]:
        """The scores of the checkpoints that have one, the best first."""
        scores = []
        for name in self.names():
            with suppress(CheckpointError, RecursionError):
                score = read_manifest(self.path / name).fields("about").fields("score")
                if score.value("value") is not None:
                    scores.append(_Score.read(name, score))
        return sorted(scores, key=lambda score: score.order, reverse=True)


class _Score(NamedTuple):
    """What decides which checkpoint is the best."""

    name: str
    metric: str
    value: float
    order: tuple[float, int]  # the largest is the best; of equal values the newer
    opposed: str | None  # how the agents' returns oppose each other
    unfit: str | None  # why the metric does not tell which one is the best: that, or another reason

    @classmethod
    def read(cls, name: str, score: StateReader) -> _Score:
        value, sign = score.number("value"), 1.0 if score.boolean("higher_is_better") else -1.0
        opposed, unfit = (
            score.string(key) if key in score and score.value(key) is not None else None for key in ("opposed", "unfit")
        )
        return cls(name, score.string("metric"), value, (sign * value, _iteration(name)), opposed, opposed or unfit)

    def __str__(self) -> str:
        return f"{self.metric} ({self.value:.4g})"


def _newest(scores: Sequence[_Score]) -> _Score:
    return max(scores, key=lambda score: score.order[1])


def checkpoints_of(run: Path) -> CheckpointFolder:
    """The checkpoints in a run folder."""
    return CheckpointFolder(run / "checkpoints", may_be_link=False)


def without_zip(path: str | Path) -> Path:
    """The path without the suffix `.zip`: users of SB3 may write it, but checkpoints are folders."""
    folder = as_path("path", path)
    return folder.with_suffix("") if folder.suffix == ".zip" else folder


def find_checkpoint(path: str | Path, which: str | None = "latest") -> Checkpoint:
    """Read the checkpoint at a path.

    Args:
        path: a checkpoint, a run folder, the folder `checkpoints` of a run, or a folder of runs: its newest run.
        which: of a run; see `CheckpointFolder.load`.

    Raises:
        CheckpointError: the path is none of these or cannot be read, there is no such checkpoint, or it is damaged.
    """
    try:
        found = _find(path, which)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    if found.why:
        _log.info("%s: %s", path, found.why)
    return found


def _find(path: str | Path, which: str | None) -> Checkpoint:
    folder = STORE.folder(path)
    if (folder / MANIFEST).exists() or _NAME.fullmatch(folder.name):
        found = read_checkpoint(folder)
        if which not in ("latest", "best", None) and which not in (folder.name, str(found.about.value("iteration"))):
            raise CheckpointError(
                f"{path} is one checkpoint, and not {which!r}; accepted: best, latest, or its own number"
            )
        return found
    for candidate in (checkpoints_of(folder), CheckpointFolder(folder)) if folder.is_dir() else ():
        if candidate.names():
            return candidate.load(which)
    run = newest_run(folder)
    if run is not None:
        _log.info("newest run in %s: %s", folder, run)
        return _find(run, which)
    raise CheckpointError(f"{path} is {_what_it_is(folder)}; accepted: a checkpoint, or a run folder that has one")


def with_checkpoint(find: Callable[[], Checkpoint], use: Callable[[Checkpoint], T]) -> T:
    """Use a checkpoint; if a running training removes it before its weights are read, use the one that is found then.

    Args:
        find: returns a checkpoint, whose weights are read when they are used.
        use: may be called again.

    Raises:
        CheckpointError: from `find`; or from `use`, of a checkpoint that is still there.
    """
    found = find()
    for _ in range(_MOST_LISTINGS):
        try:
            return use(found)
        except CheckpointError:
            if os.path.lexists(found.folder):
                raise
        found = find()
        with suppress(CheckpointError):  # it may be removed, too: `use` will say so
            files = {name: file for name, file in found.tensors.items() if name.startswith("policy-")}
            loaded = {name: TensorFile(name, file.load()) for name, file in files.items()}
            found = replace(found, tensors={**found.tensors, **loaded})
    return use(found)


class FolderStore:
    """The store of checkpoints in folders; it takes every path. See `marl_sb3.doors.Store`."""

    def takes(self, path: str | Path) -> bool:
        """See `Store.takes`."""
        return True

    def folder(self, path: str | Path) -> Path:
        """See `Store.folder`."""
        return Path(path) if os.path.lexists(path) else without_zip(path)

    def place(self, path: str | Path) -> Path:
        """See `Store.place`: without `.zip`; a folder that is new, empty or a checkpoint."""
        folder = without_zip(path)
        is_empty = folder.is_dir() and not any(folder.iterdir())
        if folder.exists() and not is_empty and not (folder / MANIFEST).exists():
            words = f"{folder} exists and is not a checkpoint; accepted: a new or an empty folder, or a checkpoint"
            raise ConfigError(words)
        return folder

    def write(self, place: Path, state: State, tensors: Tensors, about: Mapping[str, Any]) -> None:
        """See `Store.write`."""
        write_checkpoint(place, state, tensors, about)

    def read(self, path: str | Path, which: str | None, use: Callable[[Checkpoint], T]) -> T:
        """See `Store.read`; a checkpoint that a running training has removed meanwhile is replaced by another."""
        return with_checkpoint(lambda: find_checkpoint(path, which), use)


STORE: Store = FolderStore()


def newest_run(folder: Path) -> Path | None:
    """The run in a folder that was started or resumed last; None if there is none.

    Runs without a checkpoint, which nothing can be done with, are passed over with a warning if another has one.
    """
    configs = [config for config in folder.glob(f"*/{RUN_CONFIG}") if is_regular(config)]
    configs.sort(key=lambda config: (config.stat().st_mtime_ns, config.parent.name), reverse=True)
    for number, config in enumerate(configs):
        with suppress(CheckpointError):
            if checkpoints_of(config.parent).names():
                for passed_over in configs[:number]:
                    _log.warning("%s has no checkpoint; passed over", passed_over.parent)
                return config.parent
    return configs[0].parent if configs else None


def _what_it_is(path: Path) -> str:
    """Describe a path that is not a checkpoint."""
    if not path.exists():
        return "not there"
    if not path.is_dir():
        return "a file: an SB3 zip is opened by SB3's load, or by --init-from" if path.suffix == ".zip" else "a file"
    is_run = (path / RUN_CONFIG).is_file()
    return "a run folder without a checkpoint" if is_run else "a folder that holds no valid checkpoint"


def _iteration(name: str) -> int:
    return int(name.removeprefix("ckpt-"))
