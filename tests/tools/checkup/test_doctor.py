"""`python -m marl_sb3.doctor`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from faulty_answers import EndsEarly, InfiniteReward, NotANumber, Raises
from faulty_behaviour import LargeNumbers
from healthy import Healthy

from marl_sb3 import doctor
from marl_sb3.tools import checkup


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examine in this process, and do not measure."""
    examine = checkup.examine

    def here(env: Any, settings: Any, *, on_call: Callable[[str], None], **options: Any) -> Any:
        on_call("episode 0, step 1")
        return examine(env, settings, **options, isolated=False, measure_s=0.0)

    monkeypatch.setattr(checkup, "examine", here)


def run(factory: type, *arguments: str) -> int:
    return doctor.main([f"{factory.__module__}:{factory.__name__}", "--steps", "60", *arguments])


def test_a_healthy_env_is_told_with_what_fits_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Healthy) == 0
    shown = capsys.readouterr()
    assert re.search(r"^agents +2: a, b$", shown.out, re.MULTILINE)  # a slow env has a row with a longer name
    assert shown.out.endswith("healthy:Healthy: no faults\n")
    assert shown.err == ""


def test_a_fault_is_told_with_place_reason_and_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(NotANumber) == 1
    shown = capsys.readouterr().out
    first, *rest = shown.splitlines()
    assert first == "FAULT  An observation is NaN or infinite  [observation-not-finite]"
    assert rest[0] == "  seen  a, episode 0, step 3: observation is nan at index (1,)"
    labels = [line[:8].strip() for line in rest[: rest.index("")]]
    assert [label for label in labels if label] == ["seen", "why", "do"]
    assert shown.endswith("faulty_answers:NotANumber: 1 fault\n")
    assert max(map(len, shown.splitlines())) <= 80


def test_advice_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(EndsEarly) == run(LargeNumbers) == 0
    assert "faulty_behaviour:LargeNumbers: no faults, 1 piece of advice\n" in capsys.readouterr().out


def test_json_holds_the_findings_and_what_was_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(NotANumber, "--json", "--seed", "7") == 1
    plain = json.loads(capsys.readouterr().out)
    assert (plain["env"], plain["seed"], plain["healthy"]) == ("faulty_answers:NotANumber", 7, False)
    (finding,) = plain["findings"]
    assert finding["severity"] == "fault"
    assert finding["count"] > len(finding["seen"]) == 5
    assert finding["seen"][0]["agent"] == "a"
    assert plain["agents"] == ["a", "b"]
    assert plain["episode_len"]["min"] >= 6


def test_json_has_finite_numbers_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(InfiniteReward, "--json") == 1
    assert json.loads(capsys.readouterr().out)["episode_return"] is None


def test_a_traceback_is_shown_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Raises) == 1
    shown = capsys.readouterr().out
    assert "step() raised ZeroDivisionError: of the env (" in " ".join(shown.split())
    assert "Traceback" not in shown
    assert run(Raises, "-v") == 1
    assert "Traceback (most recent call last):" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "ENV is missing; accepted: an env id, such as arena or my_module:MyEnv"),
        ("arenaa", "unknown env 'arenaa'; did you mean arena?"),
        ("arena --steps 0", "steps is 0; accepted: an integer of at least 1"),
        ("arena --set lr=1", "--set is 'lr'; accepted: env.KEY=VALUE, an argument of the env"),
        ("arena --set env.hight=1", "unknown env argument 'hight'; the env takes: "),
    ],
)
def test_a_wrong_command_line_ends_with_2(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(line.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
