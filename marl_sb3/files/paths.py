"""Paths that users name, and what is wrong with one where a file cannot be opened; names of files made of other names.

All names of files and folders that come from data, such as ids of envs and policies, names in settings and in other
files, are made or checked here, so that none leads out of its folder on any system.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_sb3.errors import ConfigError

_WRONG_PATH = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.ENXIO, errno.EFBIG),  # a pipe or a device; a file that does not fit into memory
)

# On any system: separators, names of devices, and what Windows leaves out at the end. Temporary files, which are
# removed, have a dot at the beginning of their names.
_NOT_IN_NAMES = re.compile(r'[/\\:*?"<>|\0]|[. ]$|^(?=\.|(?i:con|prn|aux|nul|com\d|lpt\d)(?:\.|$))')
_MOST_BYTES = 220  # of a name that is taken as it is: with its suffix, it has at most 255
_NAME = f"a printable name of at most {_MOST_BYTES} bytes that does not begin or end with a dot, without / and \\"


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


# --- Names of files --------------------------------------------------------------------------------------------------


def require_file_name(what: str, name: object, key: str) -> str:
    """Refuse a name that comes from data and cannot be that of a file or a folder on any system, as it is.

    Args:
        what: what has the name, at the beginning of the message: `--study`, or a file and a key in it.

    Raises:
        ConfigError: it leads elsewhere, is that of a device, is too long, or has unprintable characters.
    """
    is_one = isinstance(name, str) and name.isprintable() and not _NOT_IN_NAMES.search(name)
    if not is_one or not 0 < len(str(name).encode()) <= _MOST_BYTES:
        raise ConfigError(f"{what} is {name!r:.{_MOST_BYTES}}; accepted: {_NAME}", key=key)
    return str(name)


def folder_name(name: str) -> str:
    """Return the name of the folder of an env, or of what else has any name: with `_` for what is no letter or digit.

    Two names may have the same folder, such as `sisl/pursuit-v5` and `sisl:pursuit-v5`.
    """
    return _NOT_IN_NAMES.sub("_", re.sub(r"[^\w.-]+", "_", name))


def file_names(ids: Sequence[str], suffix: str) -> dict[str, str]:
    """A file name for each accepted id: `<id><suffix>`, with `_` in place of what file names may not have.

    Ids whose names would be the same on some file system (`a/b` and `a_b`, `A` and `a`) get the first 8 hex digits of
    the SHA-256 of the id appended: `a_b-c14cddc0.zip`.
    """
    plain = {each: _NOT_IN_NAMES.sub("_", each) for each in ids}
    folded = [name.casefold() for name in plain.values()]
    unique = {each: folded.count(name.casefold()) == 1 for each, name in plain.items()}
    digests = {each: "" if unique[each] else f"-{hashlib.sha256(each.encode()).hexdigest()[:8]}" for each in plain}
    return {each: f"{name}{digests[each]}{suffix}" for each, name in plain.items()}
