"""Paths that users name: arguments of functions, and what is wrong with one where a file cannot be opened."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_sb3.errors import ConfigError

_WRONG_PATH = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.ENXIO, errno.EFBIG),  # a pipe or a device; a file that does not fit into memory
)


@contextmanager
def path_is_usable(what: str, path: str | Path, key: str) -> Iterator[None]:
    """Turn errors that a user's path causes into `ConfigError`; those of a full or failing disk stay as they are.

    Args:
        what: start of the message, such as `--run-dir: cannot write to`.
        path: the path that the user named.
        key: the setting or option.

    Raises:
        ConfigError: the path is not permitted, is read-only, has a file where a folder should be, is too long, or is no
            regular file.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _WRONG_PATH:
            raise
        inner = error.filename if isinstance(error.filename, str) else str(path)
        where = "" if os.path.abspath(inner) == os.path.abspath(path) else f" ({inner})"
        raise ConfigError(f"{what} {path}: {error.strerror}{where}", key=key) from error


def as_path(name: str, value: Any) -> Path:
    """Return an argument of a function as a path.

    Args:
        name: name of the argument, for the message.
        value: its value, of any type.

    Raises:
        ConfigError: it is neither a string nor a `pathlib.Path`, or has a null byte.
    """
    if not isinstance(value, (str, Path)) or "\0" in str(value):
        raise ConfigError(f"{name} is {value!r:.200}; accepted: a path, as a string or a pathlib.Path", key=name)
    return Path(value)


def require_text(option: str, path: Path, key: str) -> None:
    """Refuse a folder whose name is no text: TensorBoard cannot write there, and no file of a run can name it.

    Raises:
        ConfigError: it is not.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:  # bytes that are not text of the encoding are read as surrogates
        words = f"the path {str(path)!a} is not text in the encoding {sys.getfilesystemencoding()}"
        accepted = "a path of characters, and for others than ASCII a locale of UTF-8, or PYTHONUTF8=1"
        raise ConfigError(f"{option}: {words}; accepted: {accepted}", key=key) from error
