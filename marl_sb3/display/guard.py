"""Errors of a view do not end the training or search that it shows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, ParamSpec, TypeVar

_log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Guard(Generic[_T]):
    """Call functions of a view; after the first one that fails, log a warning and call no more."""

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close
        self._has_failed = False

    def __call__(self, show: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        """Call `show`; returns its result, or None if this call or an earlier one failed."""
        if self._has_failed:
            return None
        try:
            return show(*args, **kwargs)
        except Exception as error:  # of any kind: a training must not end because of its display
            self._has_failed = True
            with suppress(Exception):
                self._close()
            _log.warning("the display has failed, and shows nothing more: %s: %s", type(error).__name__, error)
            _log.debug("where the display failed", exc_info=error)
            return None
