"""Storages of studies: a journal in the study's folder that survives killed writers, or the user's database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

from marl_sb3.errors import ConfigError
from marl_sb3.storage.atomic import with_filename

_JOURNAL = "journal.log"


class _ProcessLock:
    """A lock that the system releases if its holder is killed. Optuna's locks stay until they time out."""

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path)

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._lock.acquire()
        return True

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


class SafeJournal(JournalFileBackend):
    """Optuna's journal, repaired if a killed writer has left an incomplete line: Optuna could not read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._write_lock = _ProcessLock(path.with_name(f"{path.name}.lock"))
        super().__init__(str(path), lock_obj=self._write_lock)  # type: ignore[arg-type]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append after the last complete line."""
        self._write_lock.acquire()  # reentrant: Optuna takes it, too
        try:
            with with_filename(self._path):
                self._truncate_incomplete_line()
                super().append_logs(logs)
        finally:
            self._write_lock.release()

    def _truncate_incomplete_line(self) -> None:
        """Remove the incomplete line of a dead writer: a living one would hold the lock."""
        with open(self._path, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if size and file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)


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
    """Turn the various errors that Optuna raises on a damaged journal into a `ConfigError`."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AssertionError) as error:
        if url is not None:
            raise
        raise ConfigError(
            f"{study_folder / _JOURNAL} is damaged: {type(error).__name__}: {error}", key="study"
        ) from error


def open_storage(study_folder: Path, url: str | None) -> BaseStorage:
    """Open the storage of a study.

    Args:
        url: a database in SQLAlchemy's notation, such as `sqlite:///study.db` or `postgresql://...`; None: the journal.
    """
    if url is None:
        study_folder.mkdir(parents=True, exist_ok=True)
        with damage_named(study_folder, url):
            return JournalStorage(SafeJournal(study_folder / _JOURNAL))
    try:
        # SQLite lets one process write at a time; by default, the others fail after five seconds.
        options = {"connect_args": {"timeout": 120}} if url.startswith("sqlite") else {}
        return RDBStorage(url, engine_kwargs=options)
    except Exception as error:  # drivers raise errors of many types
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(f"--storage {without_password(url)} cannot be opened: {why}", key="storage") from error
