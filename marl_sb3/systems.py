"""What systems lack or do otherwise, in one place: the package is written for Linux, and this says what else there is.

What Windows has no name for is asked for here only, and a test finds it elsewhere. Workers and runners need processes
that are forked, and belong to `extensions.remote`: it alone takes the names of POSIX directly, behind `CAN_FORK`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marl_sb3.errors import ConfigError

IS_WINDOWS = os.name == "nt"
IS_MACOS = sys.platform == "darwin"
_HAS_DISPLAY_VARIABLES = not (IS_WINDOWS or IS_MACOS)  # whether windows need `$DISPLAY` or `$WAYLAND_DISPLAY`

CAN_FORK = hasattr(os, "fork") and hasattr(socket, "send_fds")


def lacks_display() -> bool:
    """Whether no window can be opened, for all that the environment says."""
    return _HAS_DISPLAY_VARIABLES and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def require_fork(key: str, value: object, accepted: str) -> None:
    """Refuse a setting that takes processes forked from this one.

    Args:
        key: the setting.
        value: what it is.
        accepted: what it may be here.

    Raises:
        ConfigError: this system cannot fork processes.
    """
    if not CAN_FORK:
        words = "this system cannot fork processes; Linux, macOS and the Windows Subsystem for Linux can"
        raise ConfigError(f"{key} is {value}, but {words}; accepted here: {accepted}", key=key)


def after_fork(call: Callable[[], object]) -> None:
    """Have a function called in each process that is forked from this one, where processes can be forked."""
    if CAN_FORK:
        os.register_at_fork(after_in_child=call)


def cores() -> int:
    """Return the number of cores that this process may use, as far as the system says."""
    affinity: Any = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def yielding() -> Any:
    """Return the C function that offers the core to other threads."""
    if IS_WINDOWS:
        windows: Any = ctypes
        return windows.windll.kernel32.SwitchToThread
    return ctypes.CDLL(None).sched_yield


# --- Signals and processes -------------------------------------------------------------------------------------------

# The terminal was closed: on Windows, closing the console and Ctrl-Break are one signal.
HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", getattr(signal, "SIGBREAK", None))
KILL: signal.Signals = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows, `os.kill` ends a process at once
STACKS: signal.Signals | None = getattr(signal, "SIGUSR1", None)  # asks for stacks; Windows has no signal for it

# Exit codes of a process that a signal from here has ended before it could handle it: on Windows, that of
# STATUS_CONTROL_C_EXIT, and of the C library's default handler.
ENDED_BY_SIGNAL = (0xC000013A, 3) if IS_WINDOWS else (-signal.SIGTERM,)


def apart() -> dict[str, Any]:
    """Return options of `subprocess.Popen`: keys of the terminal, such as Ctrl-C, do not reach the process."""
    if IS_WINDOWS:
        return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    return {"start_new_session": True}


def ask_to_end(process: subprocess.Popen[Any]) -> None:
    """Send a signal that asks a process to end to one that was started with `apart`: SIGTERM, on Windows Ctrl-Break."""
    if IS_WINDOWS:  # SIGTERM would end it at once, and nothing would be saved
        process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGTERM))
    else:
        process.terminate()


def ask_this_to_end() -> None:
    """Send SIGTERM to this process from another thread than the main one; handlers are called."""
    if IS_WINDOWS:
        signal.raise_signal(signal.SIGTERM)
    else:  # to the process: it wakes the main thread, too
        os.kill(os.getpid(), signal.SIGTERM)


def end_this_at_once() -> None:
    """End this process without any cleaning up, as if it were killed."""
    os.kill(os.getpid(), KILL)


@contextmanager
def without_hangup() -> Iterator[None]:
    """Keep the signal of a closed terminal from processes that are started within the context, if there is one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# --- Files -----------------------------------------------------------------------------------------------------------

AS_BYTES: int = getattr(os, "O_BINARY", 0)  # for `os.open`: Windows would write two characters for a newline
_NO_LINKS: int | None = getattr(os, "O_NOFOLLOW", None)
NO_LINKS_NO_WAITING: int = (_NO_LINKS or 0) | getattr(os, "O_NONBLOCK", 0)  # for `os.open`
OPEN_FOLLOWS_LINKS = _NO_LINKS is None  # links have to be looked for before
_JUNCTION = 0xA0000003  # IO_REPARSE_TAG_MOUNT_POINT: on Windows, a link to a folder that everybody may make
_IN_USE_S = 2.0  # how long another program, such as a virus scanner, may hold a file that is to be replaced


def kind_of_file(path: str | Path) -> int:
    """Return the kind of what is at a path, as `stat.S_IFMT` does; junctions of Windows are links.

    Raises:
        OSError: there is nothing, or it cannot be looked at.
    """
    status = os.lstat(path)
    return stat.S_IFLNK if getattr(status, "st_reparse_tag", 0) == _JUNCTION else stat.S_IFMT(status.st_mode)


def replace(source: str | Path, target: str | Path) -> None:
    """Rename a file in the place of another one, or a folder to a name that is free.

    Raises:
        OSError: it cannot be renamed; on Windows, another program has held it open for two seconds.
    """
    until_s = time.monotonic() + (_IN_USE_S if IS_WINDOWS else 0.0)
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(0.02)


def sync(path: str | Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    Raises:
        OSError: the disk is full or failing.
    """
    if IS_WINDOWS and os.path.isdir(path):  # it cannot open folders
        return
    descriptor = os.open(path, os.O_RDWR if IS_WINDOWS else os.O_RDONLY)  # it syncs only what may be written
    try:
        sync_open(descriptor)
    finally:
        os.close(descriptor)


def sync_open(descriptor: int) -> None:
    """Wait until an open file is on the disk; on macOS, `fsync` alone leaves it in the memory of the disk."""
    if IS_MACOS:
        import fcntl

        try:
            fcntl.fcntl(descriptor, getattr(fcntl, "F_FULLFSYNC", 51))
            return
        except OSError:  # a file system, such as one of the network, that has no such call
            pass
    os.fsync(descriptor)


# --- Terminals and the network ---------------------------------------------------------------------------------------

_ARROWS = {"H": "\x1b[A", "P": "\x1b[B", "M": "\x1b[C", "K": "\x1b[D"}


def has_console_keys() -> bool:
    """Whether keys are typed into a console of Windows, which `console_keys` reads."""
    return IS_WINDOWS and sys.stdin is not None and sys.stdin.isatty()


def console_keys(timeout_s: float) -> str:
    """Wait for keys in a console of Windows for at most so long; returns what a terminal sends for them."""
    import msvcrt

    console: Any = msvcrt
    until_s, typed = time.monotonic() + timeout_s, ""
    while not console.kbhit() and time.monotonic() < until_s:
        time.sleep(0.01)
    while console.kbhit():
        key = console.getwch()
        typed += _ARROWS.get(console.getwch(), "") if key in ("\0", "\xe0") else key
    return typed


def take_port_alone(listening: socket.socket) -> None:
    """Allow a socket the port of one that has just closed, but not of one that listens: on Windows, these differ."""
    if IS_WINDOWS:
        listening.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", ~socket.SO_REUSEADDR), 1)
    else:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
