"""Open what is in the folder of a run or a study, whose content is untrusted: regular files and real folders.

Links in it are not followed, pipes and devices are never waited for, and no file is read that does not fit into memory.
The folder itself, which the user names, may be a link. Files that are replaced as a whole (`atomic`) need no check: a
renamed file takes the place of a link, and not of what it leads to.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec
import psutil

from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.files.paths import path_is_usable
from marl_sb3.systems import AS_BYTES, NO_LINKS_NO_WAITING, OPEN_FOLLOWS_LINKS, kind_of_file

T = TypeVar("T")

_FOUND = {
    stat.S_IFLNK: (errno.ELOOP, "a link"),
    stat.S_IFDIR: (errno.EISDIR, "a folder"),
    stat.S_IFREG: (errno.ENOTDIR, "a file"),
}
_ACCEPTED = {stat.S_IFREG: "a regular file", stat.S_IFDIR: "a folder that is no link"}


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file; returns its descriptor. It may be the `opener` of `open`.

    Raises:
        OSError: it cannot be opened, or it is a link, a folder, a pipe or a device; names the file.
    """
    if OPEN_FOLLOWS_LINKS:
        require_regular(path)
    try:
        descriptor = os.open(path, flags | NO_LINKS_NO_WAITING | AS_BYTES, 0o666)
    except OSError:
        require_regular(path)  # says in words what ELOOP and ENXIO mean
        raise
    try:
        _require(path, os.fstat(descriptor).st_mode, stat.S_IFREG)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path) -> bytes:
    """Read a regular file.

    Raises:
        OSError: see `open_regular`; or the file is larger than a quarter of the free memory.
    """
    with open(path, "rb", opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        require_fits(path, size)
        return file.read(size)


def last_line(path: Path) -> str:
    """Return the last line of what a process has logged to a file of this program.

    Raises:
        OSError: see `read_regular`.
    """
    return read_regular(path).decode(errors="replace").strip().rpartition("\n")[2]


def read_json(path: Path, kind: type[T], what: str, key: str = "folder") -> T:
    """Read a regular file of JSON with known fields and types.

    Args:
        kind: what msgspec makes of it.
        what: the content in words, for the message: `list of members`.
        key: see `path_is_usable`.

    Raises:
        ConfigError: it cannot be read, or is something else; names the file.
    """
    with path_is_usable("cannot read", path, key):
        text = read_regular(path)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ConfigError(f"{path} is no {what}: {error}", key=key) from error


@contextmanager
def opened(path: Path, limit: int, size: int | None = None) -> Iterator[FileIO]:
    """Open a regular file for reading, unbuffered; links are not followed.

    Args:
        path: the file; messages contain its name without the folder.
        limit: largest accepted size in bytes.
        size: expected size in bytes; None: any.

    Raises:
        CheckpointError: it is not a regular file, cannot be read, or has another size.
    """
    name = path.name
    try:
        with FileIO(path, opener=open_regular) as file:
            found = os.fstat(file.fileno()).st_size
            if found > limit:
                raise CheckpointError(f"{name} has {found} bytes; accepted: at most {limit}")
            if size not in (None, found):
                raise CheckpointError(f"{name} has {found} bytes; the manifest says {size}")
            yield file
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror}") from error


def read_bytes(path: Path, limit: int, size: int | None = None) -> bytes:
    """Read a file; see `opened` for arguments and errors."""
    with opened(path, limit, size) as file:
        return file.readall()[: limit + 1]


def append_text(path: Path) -> TextIO:
    """Open a regular file for appending UTF-8, newlines as they are; it is made if it does not exist.

    Raises:
        OSError: see `open_regular`.
    """
    return open(path, "a", encoding="utf-8", newline="", opener=open_regular)


def is_regular(path: Path) -> bool:
    """Whether there is a regular file; False for links."""
    return _kind(path) == stat.S_IFREG


def require_regular(path: str | Path) -> None:
    """Refuse a path that exists and is no regular file.

    Raises:
        OSError: names it and says what it is.
    """
    _require(path, _kind(path), stat.S_IFREG)


def require_readable(path: Path) -> None:
    """Refuse a path that exists and is no regular file, or is too large: see `read_regular`."""
    require_regular(path)
    if os.path.lexists(path):
        require_fits(path, path.stat().st_size)


def require_folder(path: str | Path) -> None:
    """Refuse a path that exists and is no folder; see `require_regular`."""
    _require(path, _kind(path), stat.S_IFDIR)


def require_own(folder: Path, patterns: Iterable[str]) -> None:
    """Refuse entries of a folder that lead out of it or would hang a reader.

    Args:
        folder: it may be a link.
        patterns: names, or patterns as for `Path.glob`; those of folders end in `/` and come before their content.

    Raises:
        OSError: names the first path that is something else.
    """
    for pattern in patterns:
        name = pattern.rstrip("/")
        for path in folder.glob(name) if "*" in name else [folder / name]:  # glob leaves out dangling links
            (require_regular if name == pattern else require_folder)(path)


def require_fits(path: str | Path, size: int) -> None:
    """Refuse so many bytes of a file, or of a part of one, if they are more than a quarter of the free memory.

    Raises:
        OSError: names it.
    """
    most = psutil.virtual_memory().available // 4  # it may be held several times, parsed and unparsed
    if size > most:
        raise OSError(errno.EFBIG, f"it has {size} bytes; the free memory allows {most}", str(path))


def _kind(path: str | Path) -> int | None:
    """The kind of file, as `stat.S_IFMT` returns it; None if there is none."""
    try:
        return kind_of_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _require(path: str | Path, mode: int | None, accepted: int) -> None:
    if mode is None or stat.S_IFMT(mode) == accepted:
        return
    number, found = _FOUND.get(stat.S_IFMT(mode), (errno.ENXIO, "a pipe, a socket or a device"))
    raise OSError(number, f"it is {found}; accepted: {_ACCEPTED[accepted]}", str(path))
