"""Standard output and error that never raise, text that is safe to print, and views that fail and end no training."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TextIO, TypeVar
from unicodedata import category

_log = logging.getLogger(__name__)

ORDINARY = {"ordinary": True}  # `extra` of warnings that commands show as lines without a level

_P = ParamSpec("_P")
_T = TypeVar("_T")


def printable(text: object) -> str:
    r"""Text in which a terminal finds nothing to obey, for all that is printed or logged: ESC becomes `\x1b`."""
    plain = str(text)  # Zs are spaces of other widths
    safe = (c if c.isprintable() or c in "\n\t" or category(c) == "Zs" else ascii(c)[1:-1] for c in plain)
    return plain if plain.isprintable() else "".join(safe)


def print_text(text: object, *, stderr: bool = False, end: str = "\n") -> None:
    """Print text by `printable` on standard output or error, at once."""
    print(printable(text), end=end, file=sys.stderr if stderr else sys.stdout, flush=True)


class LenientStream:
    r"""A text stream whose `write` and `flush` never raise.

    Characters that the encoding lacks are written as `\xe4`. After the first error of the stream, all output is
    dropped.

    Args:
        stream: the stream; None drops all output (a closed `sys.stdout` is None).
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.error: OSError | ValueError | None = None  # the first error of the stream; None if there was none

    @property
    def is_lost(self) -> bool:
        """Whether output was lost that somebody could have read, on a full disk for example."""
        # Nobody reads a closed pipe, a closed terminal or a closed file object.
        gone = (errno.EPIPE, errno.EIO)
        return isinstance(self.error, OSError) and self.error.errno not in gone

    def write(self, text: str) -> int:
        """Write text, unless the stream has failed; returns the number of characters."""
        self._attempt(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless it has failed."""
        self._attempt(None)

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        with suppress(OSError, ValueError):
            return self._stream is not None and self._stream.isatty()
        return False

    def _attempt(self, text: str | None) -> None:
        """Write a text; None flushes."""
        if self._stream is None or self.error is not None:
            return
        try:
            if text is None:
                self._stream.flush()
            else:
                self._write(self._stream, text)
        except (OSError, ValueError) as error:  # ValueError: the file object is closed
            self.error = error

    def _write(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def discard(self) -> None:
        """After an error, drop the buffered output: Python would try to write it when it exits."""
        if self._stream is not None and self.error is not None:
            with suppress(OSError, ValueError), open(os.devnull, "wb") as null:  # it is closed, or has no descriptor
                os.dup2(null.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


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
        except Exception as error:  # of any kind: a training run must not end because of its display
            self._has_failed = True
            with suppress(Exception):
                self._close()
            _log.warning("the display has failed, and shows nothing more: %s: %s", type(error).__name__, error)
            _log.debug("where the display failed", exc_info=error)
            return None
