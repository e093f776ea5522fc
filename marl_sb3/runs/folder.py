"""The run folder: its files, its metrics, and the lock that lets one process write to it."""

from __future__ import annotations

import difflib
import logging
import os
import re
import secrets
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from msgspec import Struct

from marl_sb3.core.config.values import EXTERNAL, id_fault
from marl_sb3.errors import ConfigError, MarlSb3Error, shown
from marl_sb3.extensions.hub import is_address, is_downloaded, local_folder
from marl_sb3.extensions.store.checkpoint_folder import RUN_CONFIG, RUNS, checkpoints_of, newest_run, runs_of
from marl_sb3.extensions.store.checkpoint_format import MANIFEST
from marl_sb3.files.atomic import remove_folder, unfinished_path, write_whole
from marl_sb3.files.paths import as_path, file_names, path_is_usable, require_text
from marl_sb3.files.plain_yaml import read_yaml
from marl_sb3.files.regular import is_regular, read_json, read_regular, require_folder, require_regular
from marl_sb3.files.signed import SIGNATURE, verified_copy
from marl_sb3.results.result_log import RESULT_FILE
from marl_sb3.runs.files import entry_of, to_yaml
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.settings import load_config

TRACKING_FILE = "tracking.json"
IMITATION_FILE = "imitation.json"  # of a run of imitate: its data and its options

_log = logging.getLogger(__name__)

_LOCK = ".lock"
TRACEBACK_FILE = "traceback.txt"
LEAGUE = "league"  # the members of its pool, each as a checkpoint
_MEMBERS_FILE = "members.json"
# What a resumed training run reads, appends to or replaces; the folder may be of somebody else.
WRITTEN = (
    *(RUN_CONFIG, RESULT_FILE, "progress.csv", "resumes.jsonl", TRACEBACK_FILE, TRACKING_FILE, IMITATION_FILE),
    *("events.out.tfevents.*", "checkpoints/", "checkpoints/ckpt-*/", "policies/", "media/", "wandb/"),
    *(f"{LEAGUE}/", f"{LEAGUE}/{_MEMBERS_FILE}", f"{LEAGUE}/*@*/"),
)
# Files of a start that was cut off before config.yaml was written; the folder counts as empty.
_OF_A_START = {_LOCK, IMITATION_FILE, *(unfinished_path(Path(name)).name for name in (RUN_CONFIG, IMITATION_FILE))}


def find_run_or_env(name: str) -> Path | None:
    """Find the run folder at a path, or else the newest run of an env of this name; None if there is neither."""
    with path_is_usable("cannot read", name, "run"):
        if is_address(name):
            return find_run(name)
        is_path = bool({"/", os.sep} & {*name}) and Path(name).parent.is_dir()  # `sisl/pursuit-v5` is an env
        if is_path or Path(name).exists():
            return find_run(name)
        return find_run(runs_of(name)) if newest_run(runs_of(name)) is not None else None


def find_run(path: str | Path) -> Path:
    """Find the run folder at a path: the path itself, or the newest run in it, as in `runs/arena`.

    The newest run is the one that was started or resumed last. A run on the Hub is downloaded.
    """
    folder = local_folder(as_path("run", path))
    with path_is_usable("cannot read", folder, "run"):
        if is_regular(folder / RUN_CONFIG):
            return folder
        require_regular(folder / RUN_CONFIG)
        newest = newest_run(folder)
        if newest is None:
            raise ConfigError(f"{folder} is not a run folder: {_why_no_run(folder)}", key="run")
    _log.info("newest run in %s: %s", folder, newest)
    return newest


def run_around(path: str | Path) -> Path | None:
    """Return the run folder that a checkpoint or a member of a league is in; None if the path is none of these."""
    folder = Path(path)
    if is_address(path):  # of a whole run
        return None
    with path_is_usable("cannot read", folder, "run"):
        parents = folder.absolute().parents[:2] if (folder / MANIFEST).exists() else ()
        return next((each for each in parents if is_regular(each / RUN_CONFIG)), None)


@contextmanager
def verified_path(path: str | Path, key: str | Path) -> Iterator[Path]:
    """Yield where a path leads in a verified copy; see `verified_copy`, which says what is refused.

    Args:
        path: a run folder, or an address of the Hub, or a checkpoint or a member of a league, for which the signature
            of its run counts if it has none itself.
        key: file of a public key.
    """
    folder = local_folder(path)
    around = None if (folder / SIGNATURE).exists() else run_around(folder)
    with verified_copy(around or folder, key) as copy:
        yield copy if around is None else copy / folder.absolute().relative_to(around)


def _why_no_run(path: Path) -> str:
    """Say why a path is not a run folder, and which folder the user may have meant."""
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
    beside = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    close = [path.parent / name for name in difflib.get_close_matches(path.name, beside, n=1)]
    close = [RUNS / path] if (RUNS / path).is_dir() else close
    return f"it does not exist{f'; did you mean {close[0]}?' if close else ''}"


class Member(Struct):
    """A member of a league, as `members.json` lists it."""

    policy: str | None = None  # whose snapshot it is; None: an opponent from elsewhere, which has no folder there
    iteration: int | None = None
    rating: float | None = None


def members_of(run: Path) -> dict[str, Member]:
    """Return the snapshots that the list of a run's league names, by their folders; none if it has no league.

    Raises:
        ConfigError: the list is damaged, or a link.
    """
    file = run / LEAGUE / _MEMBERS_FILE
    with path_is_usable("cannot read", file, "run"):
        require_regular(file)
        if not file.exists():
            return {}
        require_folder(file.parent)
    listed = read_json(file, list[Member], "list of members", "run")
    for policy_id in {member.policy for member in listed if member.policy is not None}:
        if fault := id_fault(policy_id):
            raise ConfigError(f"{file} is no list of members: the policy id {shown(policy_id)} {fault}", key="run")
    return {
        file_names([member.policy], f"@{member.iteration}")[member.policy]: member
        for member in listed
        if member.policy is not None and member.iteration is not None
    }


@contextmanager
def undone_on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the context ends with an error, such as `close` of what was opened for it."""
    try:
        yield
    except BaseException:
        undo()
        raise


class RunFolder:
    """The files of a run.

    Attributes:
        path: absolute, because an env may change the working folder of the process.
        shown: the path as the user gave it, for messages and commands to copy.
        policies: SB3 zips, written at the end.
        resumes: one JSON object per resume: its checkpoint, and what could not be restored exactly.
    """

    def __init__(self, path: Path) -> None:
        self.shown = path
        self.path = path = path.absolute()
        self.config_file = path / RUN_CONFIG
        self.checkpoints = checkpoints_of(path)
        self.policies = path / "policies"
        self.resumes = path / "resumes.jsonl"
        self._lock = FileLock(path / _LOCK)
        self._locked: os.stat_result | None = None  # of the folder, when it was locked

    @classmethod
    def new(cls, env: str, run_dir: str | Path | None) -> RunFolder:
        """Name the folder of a new run: it does not exist yet, or it is empty.

        A folder with nothing but the files of a start that failed before `config.yaml` was written counts as empty.

        Args:
            run_dir: the folder; None: `runs/<env>/<UTC time>-<4 hex>`.
        """
        if run_dir is None:
            now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
            files = cls(runs_of(env) / f"{now}-{secrets.token_hex(2)}")
        else:
            files = cls(as_path("run_dir", run_dir))
            files._require_new()
        require_text("--run-dir", files.path, "run_dir")
        return files

    def _require_new(self) -> None:
        with path_is_usable("--run-dir: cannot use", self.shown, "run_dir"):
            files = {file.name for file in self.path.iterdir()} if self.path.is_dir() else set()
            if files - _OF_A_START or (self.path.exists() and not self.path.is_dir()):
                raise ConfigError(f"--run-dir: {self.shown} exists and is not an empty folder", key="run_dir")

    def make(self, config: TrainConfig, remark: str | None = None, imitation: str | None = None) -> None:
        """Make the folder of a new run, lock it, and write the configuration.

        Args:
            remark: see `write_config`.
            imitation: content of `imitation.json`, which is there before the configuration; None: there is none.

        Raises:
            ConfigError: the folder cannot be written to, another process is writing to it, or has written a run to it
                since this object was made.
        """
        with self.writing():
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock()
            with undone_on_error(self.unlock):
                self._require_new()  # building the envs took time, in which another process may have trained here
                if imitation is not None:
                    write_whole(self.path / IMITATION_FILE, imitation)
                self.write_config(config, remark)

    def as_shown(self, path: Path) -> Path:
        """Return a path in the folder, as the user would write it."""
        return self.shown / path.relative_to(self.path)

    def writing(self) -> AbstractContextManager[None]:
        """Turn errors of a folder that cannot be written to into `ConfigError`s."""
        return path_is_usable("cannot write to the run folder", self.shown, "run_dir")

    def lock(self) -> None:
        """Lock the folder for this process, until `unlock` or its end.

        Raises:
            ConfigError: another process has locked it, it cannot be written to, or it is a copy of a run on the Hub.
        """
        if is_downloaded(self.path):
            words = f"{self.shown} is a copy of a run on the Hub, which is not written to"
            raise ConfigError(f"{words}; accepted: a copy of this folder, or a new run with --init-from", key="run")
        try:
            with self.writing():
                require_regular(self.path / _LOCK)
                self._lock.acquire(timeout=0)
                self._locked = os.stat(self.path)
        except Timeout:
            raise ConfigError(f"{self.shown} is in use: another process is training this run", key="run") from None

    def unlock(self) -> None:
        """Let other processes lock the folder; does nothing if it is not locked."""
        self._lock.release()

    @property
    def is_lost(self) -> bool:
        """Whether the folder was moved or deleted since it was locked."""
        try:
            return self._locked is not None and not os.path.samestat(self._locked, os.stat(self.path))
        except FileNotFoundError:
            return True

    def require_there(self) -> None:
        """Refuse to write to a folder that was moved or deleted since it was locked: nobody would look there.

        Raises:
            MarlSb3Error: it was.
        """
        if self.is_lost:
            raise MarlSb3Error(
                f"the run folder {self.shown} was moved or deleted while the training ran, which ends here; if it was "
                "moved, --resume with its new place continues it"
            )

    def read_config(self, env: str | None = None, *, makes_env: bool = True) -> TrainConfig:
        """Read the run's configuration.

        Args:
            env: the env id that the user gives; it replaces that of the file, with a warning if they differ. It is
                required for code of the user's own (`package.module:factory`): nothing is imported because a file says
                so.
            makes_env: whether the env will be made; if not, its id is not required.

        Raises:
            ConfigError: it is not valid, or `env` is required.
        """
        with path_is_usable("cannot read", self.config_file, "run"):
            require_regular(self.config_file)
        is_trusted = env is not None or not makes_env  # what replaces the file's env is what the user named
        trusted = entry_of(self.config_file, None, [])[0] if is_trusted else None
        config = load_config(None, hparams=self.config_file, trusted_env=trusted)
        if env is None or env == config.env:
            return config
        _log.warning(
            "%s is of env %s; it is used with %s, as --env (env=) says", self.config_file, shown(config.env), env
        )
        settings = {} if config.env == EXTERNAL else config.env_kwargs  # what clients step has no other arguments
        return replace(config, env=env, env_kwargs=settings)

    def write_config(self, config: TrainConfig, remark: str | None = None) -> None:
        """Replace `config.yaml` atomically; the comments at its beginning are kept, and a remark is added to them."""
        before = read_regular(self.config_file).decode() if self.config_file.exists() else ""
        comments = list(takewhile(lambda line: line.startswith("#"), before.splitlines()))
        added = [] if remark is None else [f"# {' '.join(remark.split())}"]
        write_whole(self.config_file, "".join(f"{line}\n" for line in [*comments, *added]) + to_yaml(config))


def require_run(folder: Path, env: str) -> None:
    """Refuse a folder that is neither free nor a run of an env: what is to be removed may be of somebody else.

    Raises:
        ConfigError: it is neither; it has to be moved or removed by hand.
    """
    content: Any = None
    with path_is_usable("cannot use", folder, "folder"):
        require_folder(folder)
        if not folder.exists() or {each.name for each in os.scandir(folder)} <= _OF_A_START:
            return
        require_regular(folder / RUN_CONFIG)
        if (folder / RUN_CONFIG).exists():
            content = read_yaml(folder / RUN_CONFIG)
    if not isinstance(content, Mapping) or [*content] != [env]:
        words = f"{folder} is in the place of a run of {shown(env)}, and is none, so that it is not removed"
        raise ConfigError(f"{words}; accepted: no such folder, or that of a run", key="folder")


def remove_run(folder: Path, env: str) -> None:
    """Remove a run that begins anew, if there is one; the errors are those of `require_run`."""
    require_run(folder, env)
    remove_folder(folder)


def write_traceback(folder: Path, error: BaseException) -> Path:
    """Write the traceback of a failed training run to its folder; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(traceback.format_exception(error))
    return write_whole(folder / TRACEBACK_FILE, text.encode(errors="backslashreplace"))
