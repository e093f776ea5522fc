"""What only shows something never ends what it shows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, ParamSpec, TypeVar

_log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Guard(Generic[_T]):
    """Calls functions of a view. The first one that fails is reported once, and ends the view alone.

    Args:
        close: gives back what the view holds.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close
        self._has_failed = False

    def __call__(self, show: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        """What the function returns; None if it failed, or one before it did."""
        if self._has_failed:
            return None
        try:
            return show(*args, **kwargs)
        except Exception as error:  # whatever it is: nobody should lose a training over it
            self._has_failed = True
            with suppress(Exception):
                self._close()
            _log.warning("the display has failed, and shows nothing more: %s: %s", type(error).__name__, error)
            _log.debug("where the display failed", exc_info=error)
            return None
