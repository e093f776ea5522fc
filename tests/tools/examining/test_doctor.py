"""`python -m marl_sb3.doctor`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from faulty_answers import EndsEarly, InfiniteReward, NotANumber, Raises
from faulty_behaviour import LargeNumbers
from gymnasium import spaces
from healthy import Healthy
from toy_envs import SampledEnv

from marl_sb3 import doctor, make_vec_env
from marl_sb3.core.envs.registry import env_factory
from marl_sb3.core.vec_env import make
from marl_sb3.tools.examining import api, probes
from marl_sb3.tools.examining.finding import Evidence
from marl_sb3.tools.examining.fit import fitting
from marl_sb3.tools.examining.player import EnvUnderTest, Job

EXAMINE = api.examine


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examine in this process, and do not measure."""
    examine = api.examine

    def here(env: Any, settings: Any, *, on_call: Callable[[str], None], **options: Any) -> Any:
        on_call("episode 0, step 1")
        return examine(env, settings, **options, isolated=False, measure_s=0.0)

    monkeypatch.setattr(api, "examine", here)


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


def test_an_env_is_examined_in_its_wrappers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = "env_wrapper=gymnasium.wrappers.TimeAwareObservation"
    assert run(Healthy, "--set", wrapper) == 2
    assert "env_wrapper: the env is a Healthy; accepted: a Gymnasium env" in capsys.readouterr().err
    monkeypatch.setattr(api, "examine", partial(EXAMINE, measure_s=0.01))
    assert doctor.main(["CartPole-v1", "--steps", "30", "--set", wrapper]) == 0
    shown = capsys.readouterr().out
    assert "(5,)" in shown
    assert f"python -m marl_sb3.train CartPole-v1 --set {wrapper}" in shown


def test_small_images_are_for_small_convolutions() -> None:
    evidence, grid = Evidence(), spaces.Box(0, 255, (7, 7, 3), np.uint8)
    env = make_vec_env(SampledEnv, observation_space=grid, action_space=spaces.Discrete(2))
    assert fitting(env, evidence)["groups"][0]["policy"] == "CnnPolicy (features_extractor_class=image_cnn)"
    assert not evidence.reports["no-algorithm"]


class Notes:
    """A heartbeat that keeps the call which has a time limit."""

    call = ""

    def enter(self, call: str) -> None:
        self.call = call

    def rest(self) -> None:
        self.call = ""


def test_imports_and_compilers_have_no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    notes, calls = Notes(), []
    monkeypatch.setattr(make, "make_vec_env", lambda *_, **__: calls.append(notes.call) or make_vec_env("arena"))
    for env_id in ("CartPole-v1", "MountainCarContinuous-v0"):
        job = Job(env_id, {"render_mode": "rgb_array"} if "Cart" in env_id else {}, 0, 1, 5, 1.0, 0.001, 30.0)
        subject = EnvUnderTest(job, env_factory(env_id), notes)  # type: ignore[arg-type]
        with subject.player("nothing") as player:
            player.play((0, 0), 2)
        assert notes.call == ""
        probes.measure_speed(subject)
    assert calls == ["make_vec_env()||", ""]


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
        ("arena --set env_wrapper=nothing", "env_wrapper is 'nothing'; accepted: "),
        ("arena --set env.hight=1", "unknown env argument 'hight'; the env takes: "),
    ],
)
def test_a_wrong_command_line_ends_with_2(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(line.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
