"""Examine an env in this process: the probes in their order, each followed by its checks."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout

from marl_sb3.checkup import probes
from marl_sb3.checkup.checks import CHECKS
from marl_sb3.checkup.finding import FAULT, Finding
from marl_sb3.checkup.player import EnvUnderTest, StoppedError
from marl_sb3.checkup.replays import replay_episodes

PROBES: Mapping[str, Callable[[EnvUnderTest], None]] = {
    "interface": probes.look_at_interface,
    "episodes": probes.record_episodes,
    "seeds": probes.repeat_episodes,
    "replays": replay_episodes,
    "memory": probes.look_for_growth,
    "state": probes.restore_state,
    "speed": probes.measure_speed,
    "render": probes.render_frames,  # late: where there is no screen, it may end the process
    "end": probes.name_left_running,
}


def examine_here(subject: EnvUnderTest, on_facts: Callable[[], None] = lambda: None) -> Iterator[Finding]:
    """Run all probes, and yield what is found after each.

    An env that cannot be made or reset is not probed any further. `on_facts` is called once all facts are known, before
    anything is rendered.

    Raises:
        ConfigError: the factory does not take the arguments, or returns no env.
    """
    told: set[str] = set()
    evidence = subject.evidence
    for name in PROBES:
        if name == "render":
            on_facts()
        _run_probe(subject, name)
        for check in CHECKS:
            if check.id in told or (check.find is not None and check.after != name):
                continue
            if places := check.places(evidence):
                told.add(check.id)
                evidence.faulty = evidence.faulty or check.severity is FAULT
                yield Finding.of(check, places)
        was_played = any(episode.length > 0 for episode in evidence.episodes)
        if not evidence.agents or (name == "episodes" and not was_played):
            on_facts()
            return


def _run_probe(subject: EnvUnderTest, name: str) -> None:
    text = io.StringIO()
    try:
        with probes.restored_globals(), redirect_stdout(text), redirect_stderr(text), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the probe that records episodes keeps them
            PROBES[name](subject)
    except StoppedError as stopped:
        subject.evidence.report(stopped.check, stopped.seen)
    subject.watch.rest()
    if name == "episodes":
        probes.report_prints(subject.evidence, text.getvalue())
