"""Compile functions with numba once for each user and algorithm; later processes load the compiled code.

The files are in the user's cache folder (`~/.cache/marl_sb3` on Linux), in folders named by the content of the sources:
all clones and installations of the same sources share them. `NUMBA_CACHE_DIR` names another folder. Whoever compiles
removes what no process has used for 30 days.
"""

from __future__ import annotations

import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import numba
from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator
from numba.misc.appdirs import AppDirs
from typing_extensions import override

_log = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])

# error_model="numpy": a division that may raise cannot be vectorised.
# fastmath without nnan and ninf: NaN and infinity must not be optimised away.
_FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": _FAST, "no_cfunc_wrapper": True}

_UNUSED_S = 30 * 24 * 3600.0  # after so long, compiled code is removed
_VERSION, _SOURCES = re.compile(r"numba-[\w.+]+"), re.compile(r"\w+-[0-9a-f]{16}")  # names of folders
_FILE = re.compile(r".+\.nb[ci](\.[0-9a-f]+)?")  # also one that was not written to its end
_in_use: set[Path] = set()  # folders of the functions of this process


def _content(path: str) -> str:
    return sha256(Path(path).read_bytes()).hexdigest()


def _bases(source: Path) -> Iterator[Path]:
    """Yield the folders that may hold compiled code, the best first."""
    if numba.config.CACHE_DIR:  # type: ignore[attr-defined]
        yield Path(numba.config.CACHE_DIR)  # type: ignore[attr-defined]
        return
    of_user = Path(AppDirs("marl_sb3", appauthor=False).user_cache_dir)  # type: ignore[no-untyped-call]
    if of_user.is_absolute():  # there may be no home
        yield of_user
    yield source.parent / "__pycache__"


@lru_cache
def _is_writable(folder: Path) -> bool:
    """Make the folder if it is missing, and try to write into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


class _ByContent(_CacheLocator):
    """Where the compiled code of a function is: in a folder named by the content of all files that it comes from."""

    def __init__(self, function: Callable[..., Any], source: str) -> None:
        self._line = function.__code__.co_firstlineno
        # the content hash of each of these files, by path; with this one, which holds the compiler's options
        self.sources = {__file__: _content(__file__), source: _content(source)}
        for used in function.__globals__.values():
            self.sources.update(getattr(getattr(used, "_cache", None), "sources", {}))
        content = sha256("".join(sorted(set(self.sources.values()))).encode()).hexdigest()
        # A folder for each numba: two would take turns in throwing each other's files away.
        folder = f"numba-{numba.__version__}/{Path(source).stem}-{content[:16]}"
        candidates = [base / folder for base in _bases(Path(source))]
        found = [path for path in candidates if _is_writable(path)] or [path for path in candidates if path.is_dir()]
        if not found:
            raise OSError(f"none of {', '.join(map(str, candidates))} can be made")
        self._folder, self._content = found[0], content

    @classmethod
    @override
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _ByContent | None:
        try:
            return cls(py_func, py_file)
        except OSError:
            return None

    def get_cache_path(self) -> str:
        """Return the folder of the files."""
        return str(self._folder)

    def get_source_stamp(self) -> str:
        """Return a hash of the content of the sources."""
        return self._content

    def get_disambiguator(self) -> str:
        """Return the line: functions of a module may have the same name."""
        return str(self._line)


def remove_unused(base: Path) -> None:
    """Remove the compiled code below a folder that was not used for 30 days, as far as that is possible.

    Only our files in folders with our names are removed; links are not followed.
    """
    oldest_s = time.time() - _UNUSED_S
    for version in _folders(base, _VERSION):
        for folder in _folders(version, _SOURCES):
            with suppress(OSError):  # another process removes it, or it is not ours to remove
                files = [file for file in os.scandir(folder) if _FILE.fullmatch(file.name)]
                times_s = [file.stat(follow_symlinks=False).st_mtime for file in files]
                if folder not in _in_use and max([folder.lstat().st_mtime, *times_s]) < oldest_s:
                    for file in files:
                        os.unlink(file)
                    folder.rmdir()
        with suppress(OSError):  # it holds some
            version.rmdir()


def _folders(parent: Path, name: re.Pattern[str]) -> list[Path]:
    with suppress(OSError), os.scandir(parent) as entries:
        return [Path(each) for each in entries if name.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]
    return []


class _Implementation(CompileResultCacheImpl):
    _locator_classes = [_ByContent]  # noqa: RUF012 - the base class has a list


class _Files(IndexDataCacheFile):
    def _data_name(self, number: int) -> str:
        """Return a name that no other process takes: two may compile a function for different types at once."""
        return str(super()._data_name(uuid.uuid4().int % 10**15))  # type: ignore[no-untyped-call]


class RebuildingCache(FunctionCache):
    """numba's cache of one function, which all copies of the same sources share and which notices more changes.

    A damaged file is treated like a missing one, and code that cannot be saved is used all the same. Compiled code
    contains the kernels that it calls, so it is compiled again after a change of any file that they come from. numba
    checks the file of the called kernel alone.

    Args:
        function: uses kernels of other modules under their own names: `from module import kernel`.

    Raises:
        RuntimeError: there is no folder for the files.
    """

    _impl_class = _Implementation

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        # the content hash of each file that the compiled code comes from, by path
        self.sources: dict[str, str] = self._impl.locator.sources
        self._cache_file = _Files(  # type: ignore[no-untyped-call]
            self.cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )
        self._folder = Path(self.cache_path)
        _in_use.add(self._folder)

    @override
    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with suppress(OSError):
            os.utime(self._folder)  # it is in use
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception as error:  # unpickling a damaged file may raise anything
            _log.warning("compiling %s again: its files in %s are damaged (%r)", self._name, self.cache_path, error)
            self._forget()
            return None

    @override
    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
            remove_unused(self._folder.parent.parent)
        except OSError as error:  # a full disk, a folder that can only be read
            _log.info("the compiled code of %s is not saved: %s", self._name, error)
            self.disable()  # type: ignore[no-untyped-call]

    def _forget(self) -> None:
        try:
            self.flush()  # type: ignore[no-untyped-call]
        except OSError:  # not writable: compile in every process
            self.disable()  # type: ignore[no-untyped-call]


def compiled(function: _Function, **options: Any) -> _Function:
    """Compile a function when it is first called with arguments of some types.

    Args:
        function: a function in the subset of Python that numba compiles.
        options: passed to `numba.njit`.
    """
    made: Any = njit(**options)(function)
    try:
        made._cache = RebuildingCache(function)
    except RuntimeError:
        _log.debug("no folder for the compiled code of %s: it is compiled in every process", function)
    return made  # type: ignore[no-any-return]


def note_compiling(function: Any) -> None:
    """Log that a kernel, and those that it calls, have to be compiled; nothing if an earlier process has done that."""
    folder, module = function.stats.cache_path, function.py_func.__module__.rpartition(".")[2]
    if folder is None:
        _log.warning(
            "compiling the fused update: takes some seconds in every process, because there is no folder for compiled "
            "code; NUMBA_CACHE_DIR names one"
        )
    elif not any(Path(folder).glob(f"{module}.{function.py_func.__name__}-*.nbi")):
        _log.warning("compiling the fused update: takes some seconds, once for each algorithm")


def kernel(function: _Function) -> _Function:
    """Compile on the first call, for the types of its arguments; later processes load the compiled code."""
    return compiled(function, **_OPTIONS)


def inner_kernel(function: _Function) -> _Function:
    """Compile a function that only kernels call, without the entry point for Python: a quarter of the compile time."""
    return compiled(function, **_OPTIONS, no_cpython_wrapper=True)


def precise_kernel(function: _Function) -> _Function:
    """Compile an inner kernel without fastmath: its operations stay in the order in which they are written."""
    return compiled(function, **{**_OPTIONS, "fastmath": {"contract"}}, no_cpython_wrapper=True)


def strict_kernel(function: _Function) -> _Function:
    """Compile an inner kernel that rounds after each operation: multiplications and sums are not fused."""
    return compiled(function, **{**_OPTIONS, "fastmath": False}, no_cpython_wrapper=True)
