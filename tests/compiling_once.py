"""Processes that run tests side by side compile each kernel once: one of them does, the others wait for its file."""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import IO, Any

from numba import njit

from marl_sb3.compiling import KernelCache
from marl_sb3.systems import CAN_FORK

LONGEST_S = 60.0  # then it is compiled all the same: the other process may have failed to
_POLL_S = 0.02
_held: dict[Path, IO[bytes]] = {}  # by the files that this process is about to write


def shared_symbols(base: Path) -> set[str]:
    """The symbols that two files of compiled code below a folder define, although two processes compiled them."""
    compilers: dict[str, set[str]] = {}
    for path in base.rglob("*.nbc"):
        _, own = pickle.loads(path.read_bytes()[32:])
        for symbol, compiler in own.items():
            compilers.setdefault(symbol, set()).add(compiler)
    return {symbol for symbol, found in compilers.items() if len(found) > 1}


@cache
def from_python(inner: Any) -> Any:
    """A kernel that other kernels call, in one that Python calls."""
    return njit(lambda *arguments: inner(*arguments))  # noqa: PLW0108 - numba compiles the call


def compile_once() -> None:
    """From here on, in this process and those that are forked from it."""
    if CAN_FORK:
        KernelCache.load_overload = _loaded_or_locked(KernelCache.load_overload)  # type: ignore[method-assign]
        KernelCache.save_overload = _saved_and_unlocked(KernelCache.save_overload)  # type: ignore[method-assign]


def _loaded_or_locked(load: Any) -> Any:
    def load_overload(self: KernelCache, sig: Any, target_context: Any) -> Any:
        path = self._path(sig, target_context)
        if path is None or path.exists() or path in _held:
            return load(self, sig, target_context)
        lock = _locked(path)
        if (found := load(self, sig, target_context)) is None:
            _held[path] = lock
        else:
            _unlock(lock)
        return found

    return load_overload


def _saved_and_unlocked(save: Any) -> Any:
    def save_overload(self: KernelCache, sig: Any, data: Any) -> None:
        save(self, sig, data)
        path = self._path(sig, data.target_context)
        if path is not None and (lock := _held.pop(path, None)):
            _unlock(lock)

    return save_overload


def _locked(path: Path) -> IO[bytes]:
    """A file whose lock ends with the process, whatever happens to it."""
    import fcntl

    folder = Path(tempfile.gettempdir(), f"marl_sb3-compiling-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    lock = (folder / path.name).open("wb")
    deadline_s = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline_s:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(_POLL_S)
    return lock


def _unlock(lock: IO[bytes]) -> None:
    """Also for processes that were forked meanwhile, which have the file, too."""
    import fcntl

    fcntl.flock(lock, fcntl.LOCK_UN)
    lock.close()
