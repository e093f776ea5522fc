"""The run folder: its files, and the lock that lets one process write to it."""

from __future__ import annotations

import difflib
import logging
import os
import re
import secrets
import traceback
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from marl_sb3.config import TrainConfig, load_config, to_yaml
from marl_sb3.config.files import entry_of
from marl_sb3.config.values import shown
from marl_sb3.errors import ConfigError, as_path, path_is_usable
from marl_sb3.storage.atomic import unfinished_path, with_filename, write_whole
from marl_sb3.storage.checkpoint_folder import RUN_CONFIG, CheckpointFolder, newest_run

_log = logging.getLogger(__name__)

_LOCK = ".lock"
TRACEBACK_FILE = "traceback.txt"
# Files of a start that was cut off before config.yaml was written; the folder counts as empty.
_OF_A_START = (_LOCK, unfinished_path(Path(RUN_CONFIG)).name)
_RUNS = Path("runs")  # parent of all run folders without --run-dir


def find_run(path: str | Path) -> Path:
    """The run folder at a path: the path itself, or the newest run in it, as in `runs/arena`.

    The newest run is the one that was started or resumed last.
    """
    folder = as_path("run", path)
    with path_is_usable("cannot read", folder, "run"):
        return _find_run(folder)


def _find_run(folder: Path) -> Path:
    if (folder / RUN_CONFIG).is_file():
        return folder
    newest = newest_run(folder)
    if newest is not None:
        _log.info("newest run in %s: %s", folder, newest)
        return newest
    raise ConfigError(f"{folder} is not a run folder: {_why_no_run(folder)}", key="run")


def _why_no_run(path: Path) -> str:
    """Why a path is not a run folder, and which folder the user may have meant."""
    around = next((parent for parent in [*path.absolute().parents][:3] if (parent / RUN_CONFIG).is_file()), None)
    if path.exists() and around is not None:
        number = f" with --checkpoint {int(path.name[5:])}" if re.fullmatch(r"ckpt-[0-9]{6,12}", path.name) else ""
        return f"it is a part of one; did you mean {os.path.relpath(around)}{number}?"
    if path.is_dir():
        below = sorted({str(config.parent.parent) for config in path.glob(f"*/*/{RUN_CONFIG}")})
        hint = f"; there are runs in {', '.join(below[:5])}{', ...' if len(below) > 5 else ''}" if below else ""
        return f"it has no {RUN_CONFIG}{hint}"
    if path.exists():
        return "it is a file"
    close = [str(_RUNS / path)] if (_RUNS / path).is_dir() else _similar(path)
    return f"it does not exist{f'; did you mean {close[0]}?' if close else ''}"


def _similar(path: Path) -> list[str]:
    """Folders beside a path with a similar name."""
    names = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    return [str(path.parent / name) for name in difflib.get_close_matches(path.name, names, n=1)]


class RunFolder:
    """The files of a run.

    Attributes:
        policies: SB3 zips, written at the end.
        resumes: one JSON object per resume: its checkpoint, and what could not be restored exactly.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / RUN_CONFIG
        self.checkpoints = CheckpointFolder(path / "checkpoints")
        self.policies = path / "policies"
        self.resumes = path / "resumes.jsonl"
        self._lock = FileLock(path / _LOCK)

    @classmethod
    def new(cls, env: str, run_dir: str | Path | None) -> RunFolder:
        """The folder of a new run: it does not exist yet, or it is empty.

        A folder with nothing but the files of a start that failed before `config.yaml` was written counts as empty.

        Args:
            run_dir: the folder; None: `runs/<env>/<UTC time>-<4 hex>`.
        """
        if run_dir is None:
            now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
            return cls(_RUNS / re.sub(r"[^\w.-]+", "_", env) / f"{now}-{secrets.token_hex(2)}")
        folder = as_path("run_dir", run_dir)
        with path_is_usable("--run-dir: cannot use", folder, "run_dir"):
            in_use = folder.exists() and (
                not folder.is_dir() or any(p.name not in _OF_A_START for p in folder.iterdir())
            )
        if in_use:
            raise ConfigError(f"--run-dir: {folder} exists and is not an empty folder", key="run_dir")
        return cls(folder)

    @classmethod
    def existing(cls, path: str | Path) -> RunFolder:
        """The folder of a run that has been started; see `find_run`."""
        return cls(find_run(path))

    def make(self, config: TrainConfig) -> None:
        """Make the folder of a new run, lock it, and write the configuration.

        Raises:
            ConfigError: the folder cannot be written to, or another process is writing to it.
        """
        with self.writing():
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            self.write_config(config)

    def writing(self) -> AbstractContextManager[None]:
        """Turn errors of a folder that cannot be written to into `ConfigError`s."""
        return path_is_usable("cannot write to the run folder", self.path, "run_dir")

    def lock(self) -> None:
        """Lock the folder for this process, until `unlock` or its end.

        Raises:
            ConfigError: another process has locked it, or it cannot be written to.
        """
        try:
            with self.writing():
                self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(f"{self.path} is in use: another process is training this run", key="run") from None

    def unlock(self) -> None:
        """Let other processes lock the folder; does nothing if it is not locked."""
        self._lock.release()

    def read_config(self, env: str | None = None, *, makes_env: bool = True) -> TrainConfig:
        """The run's configuration.

        Args:
            env: the env id that the user gives; it replaces that of the file, with a warning if they differ. It is
                required for code of the user's own (`package.module:factory`): nothing is imported because a file says
                so.
            makes_env: whether the env will be made; if not, its id is not required.

        Raises:
            ConfigError: it is not valid, or `env` is required.
        """
        is_trusted = env is not None or not makes_env  # what replaces the file's env is what the user named
        trusted = entry_of(self.config_file, None, [])[0] if is_trusted else None
        config = load_config(None, hparams=self.config_file, trusted_env=trusted)
        if env is None or env == config.env:
            return config
        _log.warning(
            "%s is of env %s; it is used with %s, as --env (env=) says", self.config_file, shown(config.env), env
        )
        return replace(config, env=env)

    def write_config(self, config: TrainConfig) -> None:
        """Replace `config.yaml` atomically."""
        write_whole(self.config_file, to_yaml(config))


def write_traceback(folder: Path, error: BaseException) -> Path:
    """Write the traceback of a failed training to its folder; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / TRACEBACK_FILE
    with with_filename(file):
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8", errors="backslashreplace")
    return file
