"""A process in which the names of POSIX are missing, as they are on Windows: an approximation, since the rest is Linux.

The packages that marl_sb3 needs are imported first: their own versions for Windows do without these names.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import socket
import sys

LACKING = {
    "os": (
        *("fork", "forkpty", "killpg", "setsid", "getsid", "setpgid", "getpgid", "getpgrp", "tcgetpgrp", "tcsetpgrp"),
        *("getuid", "geteuid", "getgid", "getegid", "sched_getaffinity", "sched_setaffinity", "sched_yield", "nice"),
        *("memfd_create", "pread", "pwrite", "preadv", "pwritev", "readv", "writev", "posix_fallocate"),
        *("posix_fadvise", "register_at_fork", "wait", "wait3", "wait4", "waitid", "mkfifo", "mknod", "chown"),
        *("chroot", "getloadavg", "openpty", "sysconf", "statvfs", "fstatvfs", "ttyname", "uname", "fchdir", "fchmod"),
        *("O_NOFOLLOW", "O_NONBLOCK", "O_DIRECTORY", "O_CLOEXEC", "O_SYNC", "O_DSYNC", "pidfd_open", "eventfd"),
        *("setpriority", "getpriority", "lockf", "pathconf", "fdatasync", "sync", "posix_spawn"),
    ),
    "signal": (
        *("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGSTOP", "SIGCONT", "SIGTSTP", "SIGPIPE", "SIGALRM"),
        *("SIGQUIT", "SIGWINCH", "pthread_sigmask", "pthread_kill", "setitimer", "alarm", "pause", "sigwait"),
        *("SIG_BLOCK", "SIG_SETMASK", "siginterrupt", "sigtimedwait"),
    ),
    "socket": ("AF_UNIX", "send_fds", "recv_fds", "MSG_DONTWAIT", "SO_REUSEPORT"),
    "faulthandler": ("register", "unregister"),
    "modules": ("fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "syslog", "readline", "curses", "posix"),
}
# What they import on Windows, too, and on Linux asks for the names above.
_FIRST = (
    *("torch", "numba", "scipy.linalg", "stable_baselines3", "sb3_contrib", "pettingzoo", "optuna", "rich.live"),
    *("tensorboard", "psutil", "filelock", "imageio", "safetensors", "supersuit", "tempfile", "shutil", "subprocess"),
    *("asyncio", "concurrent.futures", "multiprocessing", "torch.utils.tensorboard", "numba.misc.appdirs", "pygame"),
    *("optuna.storages.journal", "cloudpickle", "msgspec", "uuid", "platform", "http.server", "getpass", "uvicorn"),
)


def remove() -> None:
    """Remove the names, for the rest of the process."""
    for name in _FIRST:
        importlib.import_module(name)
    for module in (os, signal, socket, faulthandler):
        for name in LACKING[module.__name__]:
            if hasattr(module, name) and not name.startswith("O_"):  # filelock needs them, here
                delattr(module, name)
    for name in LACKING["modules"]:
        sys.modules[name] = None  # type: ignore[assignment] - importing it is an ImportError
