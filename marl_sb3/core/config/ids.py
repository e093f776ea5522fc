"""Ids of agents, policies and custom metrics: which are accepted.

Ids are keys of checkpoints and parts of metric names and file names (`files.file_names`). An id that cannot be one of
these is refused before the first step, and not when the trained policies are saved.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from marl_sb3.errors import ConfigError, shown

EXTERNAL = "external"  # the id of the env that clients step
MAX_ID_BYTES = 200  # of UTF-8; a file name has at most 255, with its suffix
_SHOWN = 60  # characters of a wrong id in a message


def id_fault(value: object) -> str | None:
    """Why a value is not accepted as an id, as the end of a sentence; None if it is accepted."""
    if not isinstance(value, str):
        return f"is of type {type(value).__name__}; accepted: strings"
    if f"{value}" != str.__str__(value):  # an Enum, for example: `str` and `format` disagree
        return f"is a {type(value).__name__}; accepted: plain strings"
    if not value or not value.isprintable():
        return "is empty or has unprintable characters; accepted: printable strings"
    size = len(value.encode())
    return f"has {size} bytes; accepted: at most {MAX_ID_BYTES}" if size > MAX_ID_BYTES else None


def require_ids(kind: str, ids: Iterable[object], key: str, what_to_do: str = "") -> None:
    """Refuse wrong ids.

    Args:
        kind: what the ids are of: `agent`, `policy`, `custom metric`.
        what_to_do: advice, at the end of the message.
    """
    checked = list(ids)
    for value in checked:
        fault = id_fault(value)
        if fault:
            raise ConfigError(f"{kind} id {shown_id(value)} {fault}{what_to_do}", key=key)
    known = set(checked)
    for inner in map(str, checked):
        outer = next((parent for parent in accumulate(inner.split("/")[:-1], "{}/{}".format) if parent in known), None)
        if outer is not None:
            words = "the metrics of the second would lie within those of the first"
            raise ConfigError(f"{kind} ids {outer!r} and {inner!r}: {words}; accepted: other ids", key=key)


def shown_id(value: object) -> str:
    """Return an id for a message, shortened if it is long."""
    return shown(value, _SHOWN)
