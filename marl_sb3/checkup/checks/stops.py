"""Checks whose findings the plays make themselves: what stopped them, or what they compared."""

from __future__ import annotations

from marl_sb3.checkup.finding import Check, Severity


def stop_check(name: str, after: str, severity: Severity, title: str, why: str, remedy: str) -> Check:
    """A check for what plays keep under its id, see `Evidence.stop`."""
    return Check(name, severity, title, why, remedy, lambda evidence: evidence.stopped(name), after)
