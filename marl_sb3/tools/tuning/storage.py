"""Storages of studies: a journal in the study's folder that survives killed writers, or the user's database."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from marl_sb3.errors import ConfigError
from marl_sb3.files.atomic import with_filename
from marl_sb3.files.paths import path_is_usable
from marl_sb3.files.regular import open_regular, require_own, require_readable

_JOURNAL = "journal.log"
# What a search reads, locks or writes in the folder of its study, which may be from an untrusted source.
_OWN = (
    *("study.yaml", _JOURNAL, f"{_JOURNAL}.lock", ".search.lock"),
    *("workers/", "workers/*", "trials/", "trials/*/", "confirm/", "confirm/*/"),
    "confirm/*/seed-*[0-9]/",
)

_JOURNAL_DAMAGES: tuple[type[Exception], ...] = (ValueError, LookupError, TypeError, AssertionError)
_SQLITE_WAIT_S = 120  # one process at a time may write


class SafeJournal(JournalFileBackend):
    """Optuna's journal, repaired if a killed writer has left an incomplete line: Optuna could not read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # The system releases it if its holder is killed; Optuna's locks stay until they time out.
        self._write_lock = FileLock(path.with_name(f"{path.name}.lock"))
        super().__init__(str(path), lock_obj=self._write_lock)  # type: ignore[arg-type]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append after the last complete line: who wrote an incomplete one is dead, or would have the lock."""
        with self._write_lock, with_filename(self._path):  # reentrant: Optuna takes the lock, too
            with open(self._path, "r+b", opener=open_regular) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 1))
                if size and file.read(1) != b"\n":
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
            super().append_logs(logs)


def require_own_study(folder: Path) -> None:
    """Refuse links, pipes and devices under the names that a search reads or writes in the folder of its study.

    Raises:
        ConfigError: names the file.
    """
    with path_is_usable("cannot open the study in", folder, "study"):
        require_own(folder, _OWN)
        require_readable(folder / _JOURNAL)


def is_inner_database(url: str, folder: Path) -> bool:
    """Whether a URL from an untrusted file is that of a SQLite database in the folder and nothing else.

    Raises:
        ConfigError: there is a link, a pipe or a device in its place.
    """
    if not url.startswith("sqlite:///") or "?" in url:  # options in a URL may name code
        return False
    place = Path(url.removeprefix("sqlite:///")).absolute()
    if ".." in place.parts or place.parent != folder.absolute():
        return False
    with path_is_usable("cannot open the study in", folder, "study"):
        require_own(folder, [place.name + suffix for suffix in ("", "-journal", "-wal", "-shm")])
    return True


def without_password(url: str) -> str:
    """The URL of a storage with its password hidden, for files and messages."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"--storage {url} cannot be opened: {error}", key="storage") from error


@contextmanager
def damage_named(study_folder: Path, url: str | None) -> Iterator[None]:
    """Turn the various errors that Optuna raises on a damaged journal or database into a `ConfigError`."""
    try:
        yield
    except Exception as error:
        if url is None:
            what, key, damages = str(study_folder / _JOURNAL), "study", _JOURNAL_DAMAGES
        else:
            from sqlalchemy.exc import SQLAlchemyError

            what, key = f"--storage {without_password(url)}", "storage"
            damages = (SQLAlchemyError, StorageInternalError)
        if not isinstance(error, damages):
            raise
        raise ConfigError(f"{what} is damaged: {type(error).__name__}: {_first_line(error)}", key=key) from error


def open_storage(study_folder: Path, url: str | None) -> BaseStorage:
    """Open the storage of a study.

    Args:
        url: a database in SQLAlchemy's notation, such as `sqlite:///study.db` or `postgresql://...`; None: the journal.
    """
    if url is None:
        study_folder.mkdir(parents=True, exist_ok=True)
        return JournalStorage(SafeJournal(study_folder / _JOURNAL))
    try:
        _require_plain_tables(url)
        # SQLite lets one process write at a time; by default, the others fail after five seconds.
        options = {"connect_args": {"timeout": _SQLITE_WAIT_S}} if url.startswith("sqlite") else {}
        return RDBStorage(url, engine_kwargs=options)
    except Exception as error:  # drivers raise errors of many types
        words = f"--storage {without_password(url)} cannot be opened: {_first_line(error)}"
        raise ConfigError(words, key="storage") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _require_plain_tables(url: str) -> None:
    """Refuse a SQLite file with views or triggers: Optuna makes none, and those of an untrusted file may never end."""
    from sqlalchemy.engine import make_url

    path = make_url(url).database
    if not url.startswith("sqlite:///") or not path or not os.path.isfile(path):
        return
    uri = f"{Path(path).absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, timeout=_SQLITE_WAIT_S)) as file:
        odd = "SELECT name FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'"
        if found := file.execute(odd).fetchone():
            raise ValueError(f"{str(found[0])[:60]!r} is a view or a trigger; accepted: tables of Optuna")
