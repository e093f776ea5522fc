"""Each planted fault is found, alone; nothing is found in the healthy twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from doctor.planted import PLANTED, Healthy
from pettingzoo import ParallelEnv

from marl_sb3.checkup.api import examine
from marl_sb3.checkup.report import Report

CASES = [(check, factory) for check, factories in PLANTED.items() for factory in factories]


def examined(factory: Callable[..., ParallelEnv], measure_s: float = 0.0) -> Report:
    return examine(factory, steps=60, measure_s=measure_s, isolated=False)


def found(report: Report) -> list[str]:
    return [finding.check for finding in report.findings]


@pytest.mark.parametrize(("check", "factory"), CASES, ids=lambda case: getattr(case, "__name__", None))
def test_a_planted_fault_is_found_alone(check: str, factory: Callable[..., ParallelEnv]) -> None:
    report = examined(factory, measure_s=0.01 if check == "no-algorithm" else 0.0)
    assert found(report) == [check], [str(seen) for finding in report.findings for seen in finding.seen]


def test_nothing_is_found_in_the_healthy_env() -> None:
    assert found(examined(Healthy, measure_s=0.01)) == []
