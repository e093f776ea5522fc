"""Examine an env in this process: the plays in their order, each followed by its checks."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout

from marl_sb3.checkup.checks import CHECKS
from marl_sb3.checkup.finding import Finding, Severity, finding_of
from marl_sb3.checkup.player import StoppedError
from marl_sb3.checkup.probes import (
    Patient,
    bring_back,
    look_at_interface,
    look_for_growth,
    measure_speed,
    name_left_running,
    record_episodes,
    render_frames,
    repeat_episodes,
    restored_globals,
)
from marl_sb3.checkup.replays import replay_episodes

PLAYS: Mapping[str, Callable[[Patient], None]] = {
    "interface": look_at_interface,
    "episodes": record_episodes,
    "seeds": repeat_episodes,
    "replays": replay_episodes,
    "memory": look_for_growth,
    "state": bring_back,
    "speed": measure_speed,
    "render": render_frames,  # late: where there is no screen, it may end the process
    "end": name_left_running,
}


def examine_here(patient: Patient, on_facts: Callable[[], None] = lambda: None) -> Iterator[Finding]:
    """Play, and yield what is found after each play.

    An env that cannot be made or reset is not played any further.

    Args:
        patient: the env.
        on_facts: called once all facts are known, before anything is rendered.

    Raises:
        ConfigError: the factory does not take the arguments, or returns no env.
    """
    told: set[str] = set()
    evidence = patient.evidence
    for name in PLAYS:
        if name == "render":
            on_facts()
        _play(patient, name)
        for finding in _findings(patient, name):
            if finding.check not in told:
                told.add(finding.check)
                evidence.faulty = evidence.faulty or finding.severity is Severity.FAULT
                yield finding
        if not evidence.agents or (name == "episodes" and not _was_played(patient)):
            on_facts()
            return


def _play(patient: Patient, name: str) -> None:
    text = io.StringIO()
    try:
        with restored_globals(), redirect_stdout(text), redirect_stderr(text), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the play of the episodes keeps them
            PLAYS[name](patient)
    except StoppedError as stopped:
        patient.evidence.stop(stopped.check, stopped.seen)
    patient.watch.rest()
    if name == "episodes":
        patient.evidence.printed = text.getvalue()


def _findings(patient: Patient, play: str) -> Iterator[Finding]:
    """What the checks of this play find, and what stopped it."""
    for check in CHECKS:
        if check.after == play or check.id in _STOPS:
            finding = finding_of(check, check.find(patient.evidence))
            if finding is not None:
                yield finding


_STOPS = ("raises", "bad-return", "no-agents", "close-raises")  # may happen in any play


def _was_played(patient: Patient) -> bool:
    return any(len(episode.steps) > 1 for episode in patient.evidence.episodes)
