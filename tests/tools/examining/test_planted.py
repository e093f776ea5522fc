"""Each planted fault is found, alone; nothing is found in the healthy twin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from faulty_answers import PLANTED_ANSWERS, THE_END, NotANumber
from faulty_behaviour import PLANTED_BEHAVIOUR
from healthy import HEALTHY, Healthy, Nested, Parts
from pettingzoo import ParallelEnv

from marl_sb3.errors import ConfigError
from marl_sb3.tools.examining.api import examine
from marl_sb3.tools.examining.checks import CHECKS
from marl_sb3.tools.examining.finding import Evidence, Report, Seen, Severity

PLANTED = {**PLANTED_ANSWERS, **PLANTED_BEHAVIOUR}
CASES = [(check, factory) for check, factories in PLANTED.items() for factory in factories]


def examined(factory: Callable[..., ParallelEnv], measure_s: float = 0.0) -> Report:
    return examine(factory, steps=60, measure_s=measure_s, isolated=False)


@pytest.fixture(autouse=True)
def the_end() -> Iterator[None]:
    """Let threads end that envs have left."""
    THE_END.clear()
    yield
    THE_END.set()


def found(report: Report) -> list[str]:
    return [finding.check for finding in report.findings]


@pytest.mark.parametrize(("check", "factory"), CASES, ids=lambda case: getattr(case, "__name__", None))
def test_a_planted_fault_is_found_alone(check: str, factory: Callable[..., ParallelEnv]) -> None:
    report = examined(factory, measure_s=0.01 if check == "no-algorithm" else 0.0)
    assert found(report) == [check], [str(seen) for finding in report.findings for seen in finding.seen]


@pytest.mark.parametrize("factory", HEALTHY, ids=lambda factory: factory.__name__)
def test_nothing_is_found_in_a_healthy_env(factory: Callable[..., ParallelEnv]) -> None:
    report = examined(factory, measure_s=0.01)
    assert set(found(report)) == HEALTHY[factory], [str(finding.seen[0]) for finding in report.findings]
    assert report.facts["vectorizer_env_steps_per_s"] > 0
    assert report.facts["algorithm_class"] == ("MaskablePPO" if factory in (Nested, Parts) else "PPO")
    others = ["maskable_recurrent_ppo", "maskable_dqn"] if factory is Nested else []
    assert list(report.facts["masked_too"]) == others


def test_observations_of_several_parts_are_computed_with() -> None:
    """Enough steps for the checks that fit rewards to observations."""
    assert found(examine(Nested, steps=400, measure_s=0.0, isolated=False)) == []


def test_a_check_that_fails_itself_is_told_beside_the_other_findings() -> None:
    def fails(evidence: Evidence) -> list[Seen]:
        raise ZeroDivisionError("by zero")

    CHECKS.append(replace(CHECKS[0], id="of-a-test", find=fails))
    try:
        report = examined(NotANumber)
    finally:
        CHECKS.pop()
    assert set(found(report)) == {"check-failed", "observation-not-finite"}
    assert "of-a-test raised ZeroDivisionError: by zero" in str(report.of_severity(Severity.WARNING)[0].seen[0])


def test_an_env_that_exists_already_is_refused() -> None:
    with pytest.raises(ConfigError, match="accepted: an id or a factory"):
        examine(Healthy())
