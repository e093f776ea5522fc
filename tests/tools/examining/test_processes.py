"""What an examination finds from outside the process in which the env is played."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from faulty_answers import PLANTED_ANSWERS, NotANumber
from faulty_behaviour import PLANTED_BEHAVIOUR, PLANTED_IN_PROCESSES, Crashes, DrawsFromNumpy, Hangs, OrderOfASet
from healthy import Healthy
from pettingzoo import ParallelEnv

from marl_sb3.tools.examining.api import examine
from marl_sb3.tools.examining.checks import CHECKS
from marl_sb3.tools.examining.finding import Report

NOT_PLANTED = {"vectorizer-refuses", "check-failed"}  # found where all other checks have missed something


def in_a_fork(factory: Callable[..., ParallelEnv], timeout_s: float = 30.0) -> Report:
    """Examined in a fork of this process, which starts in no time: a lambda cannot be imported."""
    return examine(lambda render_mode=None: factory(render_mode), steps=30, measure_s=0.0, timeout_s=timeout_s)


def test_every_check_has_a_planted_fault() -> None:
    planted = {*PLANTED_ANSWERS, *PLANTED_BEHAVIOUR, *PLANTED_IN_PROCESSES, *NOT_PLANTED}
    assert planted == {check.id for check in CHECKS}
    assert len(CHECKS) == len(planted)


def test_findings_come_from_the_process_as_they_are() -> None:
    assert in_a_fork(Healthy).findings == []
    (finding,) = in_a_fork(DrawsFromNumpy).findings
    assert finding.check == "global-rng"
    assert str(finding.seen[0]).endswith("differs with the same seed, unless numpy.random is seeded from outside")


def test_an_env_is_examined_where_a_notebook_has_replaced_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its streams are no files, and a class of one of its cells can only be examined in a fork."""
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setattr("sys.stderr", io.StringIO())

    class Prints(Healthy):
        def step(self, actions: Any) -> Any:
            print("a step")
            return super().step(actions)

    report = in_a_fork(Prints)
    assert [finding.check for finding in report.findings] == ["prints"]
    html = report._repr_html_()
    assert "the env prints" in html
    assert "&#x27;a step&#x27;" in html


def test_a_process_that_ends_before_the_env_is_imported_does_not_blame_the_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl_sb3.extensions.remote.processes.serve._set_up", lambda _: os._exit(3))
    with pytest.raises(RuntimeError, match="the examination failed before the env was imported: exit code 3"):
        in_a_fork(Healthy)


def test_a_call_that_does_not_return_is_found_with_the_line_that_was_running() -> None:
    (finding,) = in_a_fork(Hangs, timeout_s=0.3).findings
    (seen,) = finding.seen
    assert (finding.check, seen.episode, seen.step) == ("hangs", 0, 5)
    assert seen.what.startswith("step() has not returned after 0.3 s (")
    assert seen.what.endswith("in <lambda>)")


@pytest.mark.parametrize("end", [os.abort, lambda: os._exit(3), lambda: time.sleep(60)])
def test_a_crash_or_hang_in_render_is_one_of_rendering_and_the_rest_is_reported(end: Callable[[], None]) -> None:
    class NoScreen(NotANumber):
        def render(self) -> None:
            end()

    report = in_a_fork(NoScreen, timeout_s=1.0)
    fault, rendering = report.findings
    assert (fault.check, rendering.check) == ("observation-not-finite", "render-fails")
    assert rendering.seen[0].what.startswith("while a picture was made, render() ")
    assert report.facts["num_env_steps"] == 30


@pytest.mark.parametrize(
    ("end", "told"),
    [(os.abort, "signal SIGABRT ("), (lambda: os._exit(0), "exit code 0"), (lambda: os._exit(3), "exit code 3")],
)
def test_an_env_that_ends_its_process_is_found_with_exit_code_or_signal(end: Callable[[], None], told: str) -> None:
    (finding,) = in_a_fork(type("Leaves", (Crashes,), {"stop": staticmethod(end)})).findings
    (seen,) = finding.seen
    assert (finding.check, seen.episode, seen.step) == ("crashes", 0, 5)
    assert seen.what.startswith(f"step() ended the process: {told}")


@pytest.mark.usefixtures("real_fork_servers")  # forked ones have the order of sets in common
def test_episodes_are_compared_between_processes() -> None:
    report = examine(OrderOfASet, steps=30, measure_s=0.0)
    assert repr(report).startswith(f"<Report {report.env}: 1 fault")
    assert [finding.check for finding in report.findings] == ["differs-between-processes"]
    assert report.findings[0].seen[0].step == 0
    assert report.facts["compared_processes"] is True
