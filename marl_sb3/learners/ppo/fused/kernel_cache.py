"""Compile functions with numba once per machine; later processes load the compiled code unless it is damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit
from numba.core.caching import FunctionCache

_log = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])


class RebuildingCache(FunctionCache):
    """numba's cache of one function; a damaged file is treated like a missing one."""

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
        made._cache = RebuildingCache(function)  # type: ignore[no-untyped-call]
    except RuntimeError:  # no writable cache folder: compile in every process
        made = njit(**options)(function)
    return made  # type: ignore[no-any-return]
