"""The checkpoints of a run: which there are, which are kept, which is the latest or the best."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.storage.atomic import remove_folder, remove_unfinished
from marl_sb3.storage.checkpoint_format import (
    MANIFEST,
    Checkpoint,
    Tensors,
    read_checkpoint,
    read_manifest,
    write_checkpoint,
)
from marl_sb3.storage.state import State

_log = logging.getLogger(__name__)

RUN_CONFIG = "config.yaml"  # what makes a folder a run folder
_NAME = re.compile(r"ckpt-([0-9]{6,12})")


@dataclass(frozen=True)
class Score:
    """How good a checkpoint is: the value of a metric.

    Attributes:
        metric: its flat name.
        value: None where it had none.
        higher_is_better: which way round.
    """

    metric: str
    value: float | None
    higher_is_better: bool

    def to_state(self) -> State:
        """As in the manifest."""
        return {"metric": self.metric, "value": self.value, "higher_is_better": self.higher_is_better}


class CheckpointFolder:
    """The checkpoints of a run: the newest ones, and the best.

    Args:
        path: the folder that they are in; made when it is needed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Those there are, damaged ones too, oldest first."""
        with suppress(OSError):
            found = [entry.name for entry in os.scandir(self.path) if _NAME.fullmatch(entry.name)]
            return sorted(found, key=_iteration)
        return []

    def save(self, iteration: int, state: State, tensors: Tensors, about: Mapping[str, Any], keep: int) -> str:
        """Write a checkpoint, then remove those that are neither among the newest `keep` nor the best.

        Returns:
            Its name.

        Raises:
            NumericError: an array is not finite.
            OSError: the disk is full or failing; the earlier checkpoints are as they were.
        """
        self.remove_unfinished()
        name = f"ckpt-{iteration:06d}"
        write_checkpoint(self.path / name, state, tensors, about)
        # Later ones are damaged, or the run would have gone on from them: they must not push out this one.
        earlier, best = [each for each in self.names() if _iteration(each) <= iteration], self.best()
        for old in earlier[:-keep]:
            if old != best:
                remove_folder(self.path / old)
        return name

    def remove_unfinished(self) -> None:
        """Remove what a killed process has left behind; nobody else may be writing."""
        remove_unfinished(self.path)

    def load(self, which: str = "latest") -> Checkpoint:
        """The checkpoint that is asked for; a damaged one is passed over, with a warning, for the next.

        Args:
            which: `latest`, `best`, or the number of an iteration, which alone is not passed over.

        Raises:
            CheckpointError: there is none.
        """
        if which not in ("latest", "best"):
            return read_checkpoint(self.path / self._by_number(which))
        for name in self._candidates(which):
            try:
                return read_checkpoint(self.path / name)
            except CheckpointError as error:
                _log.warning("%s; passed over", error)
        why = "" if self.names() else ": the run ended before its first"
        again = f"train --hparams {self.path.parent / 'config.yaml'} starts it anew"
        raise CheckpointError(f"{self.path} holds no valid checkpoint{why}; {again}")

    def _by_number(self, which: str) -> str:
        for name in self.names():
            if which == name or (which.isdecimal() and len(which) < 13 and int(which) == _iteration(name)):
                return name
        there = ", ".join(str(_iteration(name)) for name in self.names()) or "none"
        raise CheckpointError(f"{self.path} has no checkpoint {which!r}; accepted: best, latest, or one of {there}")

    def _candidates(self, which: str) -> Iterable[str]:
        newest_first = self.names()[::-1]
        if which == "latest":
            return newest_first
        scored = [(value, _iteration(name), name) for name, value in self._scores()]
        best_first = [name for _, _, name in sorted(scored, reverse=True)]
        return [*best_first, *(name for name in newest_first if name not in best_first)]

    def best(self) -> str | None:
        """The name of the best one, by the manifests alone; None if none has a score."""
        return max(self._scores(), key=lambda scored: (scored[1], _iteration(scored[0])), default=(None, 0.0))[0]

    def _scores(self) -> list[tuple[str, float]]:
        """Each checkpoint that has a score, by its manifest alone; higher is better, whatever the metric."""
        scores = []
        for name in self.names():
            with suppress(CheckpointError, RecursionError):
                score = read_manifest(self.path / name).fields("about").fields("score")
                if score.value("value") is not None:
                    sign = 1.0 if score.boolean("higher_is_better") else -1.0
                    scores.append((name, sign * score.number("value")))
        return scores


def without_zip(path: str | Path) -> Path:
    """The path without the suffix `.zip`, which SB3's users may give; checkpoints are folders."""
    folder = Path(path)
    return folder.with_suffix("") if folder.suffix == ".zip" else folder


def require_replaceable(folder: Path) -> Path:
    """The folder, if a checkpoint may take its place.

    Raises:
        ConfigError: there is something in it, and it is not a checkpoint.
    """
    if folder.exists() and not (folder / MANIFEST).exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(
            f"{folder} exists and is not a checkpoint; accepted: a new or an empty folder, or a checkpoint"
        )
    return folder


def find_checkpoint(path: str | Path, which: str = "latest") -> Checkpoint:
    """The checkpoint that a path leads to.

    Args:
        path: a checkpoint, a run folder, the folder `checkpoints` of a run, or a folder of runs: its newest run.
        which: of a run: `latest`, `best`, or the number of an iteration.

    Raises:
        CheckpointError: it is none of these, there is no such checkpoint, or it is damaged.
    """
    folder = Path(path) if os.path.lexists(path) else without_zip(path)
    if (folder / MANIFEST).exists() or _NAME.fullmatch(folder.name):
        return read_checkpoint(folder)
    for candidate in (folder / "checkpoints", folder):
        if candidate.is_dir() and CheckpointFolder(candidate).names():
            return CheckpointFolder(candidate).load(which)
    run = newest_run(folder)
    if run is not None:
        _log.info("newest run in %s: %s", folder, run)
        return find_checkpoint(run, which)
    raise CheckpointError(f"{path} is {_what_it_is(folder)}; accepted: a checkpoint, or a run folder that has one")


def newest_run(folder: Path) -> Path | None:
    """Of the runs in a folder the one that was started or resumed last; None if there is none."""
    configs = folder.glob(f"*/{RUN_CONFIG}")
    newest = max(configs, key=lambda config: (config.stat().st_mtime_ns, config.parent.name), default=None)
    return None if newest is None else newest.parent


def _what_it_is(path: Path) -> str:
    """What somebody may have taken for a checkpoint, in words."""
    if not path.exists():
        return "not there"
    if not path.is_dir():
        return "a file: an SB3 zip is opened by SB3's load, or by --init-from" if path.suffix == ".zip" else "a file"
    is_run = (path / RUN_CONFIG).is_file()
    return "a run folder without a checkpoint" if is_run else "a folder that holds no valid checkpoint"


def _iteration(name: str) -> int:
    return int(name.removeprefix("ckpt-"))
