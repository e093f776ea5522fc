"""Replace files and folders whole or not at all: write beside them, then rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

UNFINISHED = ".unfinished-"  # how the names of temporary files and folders begin


def write_whole(path: Path, content: bytes | str, *, sync: bool = False) -> Path:
    """Write a file; see `replaced_file`. Text is written as UTF-8, with its newlines as they are.

    Returns:
        The file.
    """
    with replaced_file(path, sync=sync) as fresh:
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@contextmanager
def replaced_file(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Give a path to write to; the file there takes the place of `path` unless an error is raised.

    Args:
        path: the file, in a folder that exists.
        sync: whether the file is on the disk, not only in the system's memory, when this returns.

    Raises:
        OSError: with the name of the file; the former file is as it was, and nothing unfinished is left.
    """
    fresh = unfinished_path(path)
    try:
        with with_filename(fresh):
            yield fresh
        if sync:
            sync_to_disk(fresh)
        os.replace(fresh, path)
        if sync:
            sync_to_disk(path.parent)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise


@contextmanager
def replaced_folder(folder: Path, *, sync: bool = False) -> Iterator[Path]:
    """Give an empty folder to fill; it takes the place of `folder` unless an error is raised.

    Args:
        folder: its name to be; its parents are made.
        sync: whether the renaming is on the disk when this returns. The files are for the caller to sync.

    Raises:
        OSError: with the name of the file or folder; the former folder is as it was, and nothing unfinished is left.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(unfinished_path(folder)) as fresh:
        with with_filename(fresh):
            yield fresh
        if sync:
            sync_to_disk(fresh)
        _put_in_place(fresh, folder, sync)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder, in place of what a killed process may have left there; remove it at the end."""
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder as far as that is possible: it loses its name first, so that a kill leaves no half of it."""
    doomed = _former_path(folder)
    shutil.rmtree(doomed, ignore_errors=True)
    with suppress(OSError):
        os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary folders that a killed process has left in a folder; nobody else may be writing there."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.name.startswith(UNFINISHED):
                shutil.rmtree(entry.path, ignore_errors=True)


def unfinished_path(path: Path) -> Path:
    """Where a file or folder is written before it gets its name: beside it, with its suffix.

    It is the same each time, so that what a killed process has left is overwritten.
    """
    name = path.name.replace("tfevents", "events")  # TensorBoard reads every file that has `tfevents` in its name
    return path.with_name(f"{UNFINISHED}{name}")


def _former_path(folder: Path) -> Path:
    return folder.with_name(f"{UNFINISHED}former-{folder.name}")


def _put_in_place(fresh: Path, folder: Path, sync: bool) -> None:
    former = _former_path(folder) if folder.exists() else None
    if former is not None:
        shutil.rmtree(former, ignore_errors=True)
        os.rename(folder, former)
    try:
        os.rename(fresh, folder)
    except BaseException:
        if former is not None:
            os.rename(former, folder)
        raise
    try:
        if sync:
            sync_to_disk(folder.parent)
    finally:
        if former is not None:
            shutil.rmtree(former, ignore_errors=True)


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():  # where folders cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with with_filename(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def with_filename(path: str | Path) -> Iterator[None]:
    """Add the file name to OSErrors from open descriptors."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
