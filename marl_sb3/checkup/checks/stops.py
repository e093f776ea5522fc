"""Checks whose findings the plays make themselves: what stopped them, or what they compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from marl_sb3.checkup.evidence import Evidence
from marl_sb3.checkup.finding import Check, Seen, Severity


def stop_check(name: str, after: str, severity: Severity, title: str, why: str, remedy: str) -> Check:
    """A check for what plays keep under its id, see `Evidence.stop`."""
    return Check(name, after, severity, title, why, remedy, _told(name))


def _told(name: str) -> Callable[[Evidence], Iterable[Seen]]:
    return lambda evidence: evidence.stopped(name)
