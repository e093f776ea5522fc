"""Compile functions with numba once per machine; later processes load the compiled code unless it is damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

_log = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])

# error_model="numpy": a division that may raise cannot be vectorised.
# fastmath without nnan and ninf: NaN and infinity must not be optimised away.
_FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": _FAST, "no_cfunc_wrapper": True}


class RebuildingCache(FunctionCache):
    """numba's cache of one function, which notices more changes.

    A damaged file is treated like a missing one. Compiled code contains the kernels that it calls, so it is compiled
    again after a change of any file that they come from. numba checks the file of the called kernel alone.

    Args:
        function: uses kernels of other modules under their own names: `from module import kernel`.

    Attributes:
        stamps: the content hash of each file that the compiled code comes from, by path.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        locator = self._impl.locator
        self.stamps: dict[str, Any] = {function.__code__.co_filename: locator.get_source_stamp()}
        for used in function.__globals__.values():
            self.stamps.update(getattr(getattr(used, "_cache", None), "stamps", {}))
        self._cache_file = IndexDataCacheFile(  # type: ignore[no-untyped-call]
            cache_path=locator.get_cache_path(),
            filename_base=self._impl.filename_base,
            source_stamp=[self.stamps[path] for path in sorted(self.stamps)],
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """See `numba.core.caching.Cache.load_overload`."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception as error:  # unpickling a damaged file may raise anything
            _log.warning("compiling %s again: its files in %s are damaged (%r)", self._name, self.cache_path, error)
            self._forget()
            return None

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
    try:
        made: Any = njit(cache=True, **options)(function)
        made._cache = RebuildingCache(function)
    except RuntimeError:  # no writable cache folder: compile in every process
        made = njit(**options)(function)
    return made  # type: ignore[no-any-return]


def note_compiling(function: Any) -> None:
    """Log that a kernel, and those that it calls, have to be compiled; nothing if an earlier process has done that."""
    folder, module = function.stats.cache_path, function.py_func.__module__.rpartition(".")[2]
    if folder is None or not any(Path(folder).glob(f"{module}.{function.py_func.__name__}-*.nbi")):
        _log.warning("compiling the fused update: takes some seconds, once per machine")


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
