"""Replace files and folders atomically: write to a temporary path beside them, then rename."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marl_sb3.files.paths import path_is_usable
from marl_sb3.systems import kind_of_file, replace, sync

UNFINISHED = ".unfinished-"  # how the names of temporary files and folders begin


def write_whole(path: Path, content: bytes | str) -> Path:
    """Write a file; see `replaced_file`. Text is written as UTF-8, with its newlines as they are.

    Returns:
        The file.
    """
    with replaced_file(path) as fresh:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` unless an error is raised.

    Args:
        path: the file, in a folder that exists.

    Raises:
        OSError: names the file. The former file is unchanged, and the temporary file is removed.
    """
    fresh = unfinished_path(path)
    try:
        with with_filename(fresh):
            fresh.unlink(missing_ok=True)  # what a killed process has left, or a link that a stranger has put there
            yield fresh
        replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise


@contextmanager
def named_by_user(path: Path, option: str = "--out") -> Iterator[None]:
    """Make the folders above a file that the user has named, which the context writes.

    Raises:
        ConfigError: there cannot be such a file; a full or failing disk raises OSError.
    """
    with path_is_usable(f"{option}: cannot write", path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        yield


@contextmanager
def replaced_folder(folder: Path, *, sync: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder to fill; it replaces `folder` unless an error is raised.

    Args:
        folder: the folder to make or replace; its parents are made.
        sync: whether to wait until the renaming is on the disk. The caller syncs the files in it.

    Raises:
        OSError: names the file or folder. The former folder is unchanged, and the temporary folder is removed.
            `NotADirectoryError`: there is a file of this name.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(unfinished_path(folder)) as fresh:
        with with_filename(fresh):
            yield fresh
        if sync:
            sync_to_disk(fresh)
        _put_in_place(fresh, folder, sync)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder and remove it at the end; what a killed process has left there is removed first."""
    _remove(path)
    os.mkdir(path)
    try:
        yield path
    finally:
        _remove(path)


def remove_folder(folder: Path) -> None:
    """Remove a folder if possible. It is renamed first, so that a kill leaves no half of it under its name."""
    doomed = _former_path(folder)
    _remove(doomed)
    with suppress(OSError):
        replace(folder, doomed)
    _remove(doomed)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary folders that a killed process has left in a folder; nobody else may be writing there."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.name.startswith(UNFINISHED):
                _remove(entry.path)


def _remove(path: str | Path) -> None:
    """Remove a folder, or the link, file or pipe in its place, if possible."""
    with suppress(OSError):
        if kind_of_file(path) != stat.S_IFDIR:  # rmtree opens what it gets, and would wait for a pipe
            os.unlink(path)
    shutil.rmtree(path, ignore_errors=True)


def unfinished_path(path: Path) -> Path:
    """The temporary path of a file or folder: in the same folder, with the same suffix.

    It is always the same, so that what a killed process has left is overwritten.
    """
    name = path.name.replace("tfevents", "events")  # TensorBoard reads every file that has `tfevents` in its name
    return path.with_name(f"{UNFINISHED}{name}")


def _former_path(folder: Path) -> Path:
    return folder.with_name(f"{UNFINISHED}former-{folder.name}")


def _put_in_place(fresh: Path, folder: Path, sync: bool) -> None:
    former = _former_path(folder)
    if replaces := folder.exists():
        _remove(former)
        replace(folder, former)
    try:
        replace(fresh, folder)
    except BaseException:
        if replaces:
            replace(former, folder)
        raise
    try:
        if sync:
            sync_to_disk(folder.parent)
    finally:
        if replaces:
            _remove(former)


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    with with_filename(path):
        sync(path)


@contextmanager
def with_filename(path: str | Path) -> Iterator[None]:
    """Add the file name to OSErrors from open descriptors."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
