"""See what the interpreter does behind a call: an audit hook (PEP 578), which can be switched on but never removed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Event names, or beginnings of them where they end in a dot.
_FORBIDDEN = (
    "pickle.find_class",
    "marshal.",
    "exec",
    "compile",
    "import",
    "code.__new__",
    "function.__new__",
    "cpython.run_",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.kill",
    "os.putenv",
    "os.chdir",
    "pty.spawn",
    "socket.",
    "urllib.Request",
    "http.client.",
    "ftplib.",
    "smtplib.",
    "telnetlib.",
    "webbrowser.open",
    "ctypes.dlopen",
    "ctypes.cdata",
    "mmap.__new__",
    "sqlite3.connect",
    "tempfile.",
    "builtins.input",
)
_WRITES = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "os.utime",
    "os.setxattr",
    "os.mkfifo",
    "shutil.",
)

_seen: list[str] | None = None
_writable: Path | None = None


def _matches(event: str, names: tuple[str, ...]) -> bool:
    return any(event.startswith(name) if name.endswith((".", "_")) else event == name for name in names)


def _outside(path: Any) -> bool:
    """Whether it is neither the folder that may be written to nor in it."""
    if _writable is None or not isinstance(path, (str, bytes, os.PathLike)):
        return True
    place = Path(os.path.abspath(os.fsdecode(path)))
    return _writable not in (place, *place.parents)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is None:
        return
    if event == "open":
        path, _, flags = arguments
        if (flags or 0) & _WRITING and _outside(path):
            _seen.append(f"open for writing {path!r}"[:200])
    elif _matches(event, _FORBIDDEN) or (_matches(event, _WRITES) and any(map(_outside, arguments[:1]))):
        _seen.append(f"{event} {arguments!r}"[:200])


_installed = False


@contextmanager
def watched(writable: Path | None = None) -> Iterator[list[str]]:
    """What happens within that loading a checkpoint must not do: code, processes, sockets, writes.

    Args:
        writable: a folder that may be written to; None: nothing may.
    """
    global _installed, _seen, _writable  # noqa: PLW0603 - a hook cannot be removed: it is told when to look
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    _writable = None if writable is None else Path(os.path.abspath(writable))
    found: list[str] = []
    _seen = found
    try:
        yield found
    finally:
        _seen = None
