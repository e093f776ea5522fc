"""What only shows something never ends a training."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, make_vec_env
from marl_sb3.core.training.results import ShowProgress
from marl_sb3.doors import VIEWS


def algorithm(**settings: Any) -> MultiAgentAlgorithm:
    small = {"n_steps": 6, "batch_size": 4, "n_epochs": 1, "policy_kwargs": {"net_arch": [2]}}
    return MultiAgentAlgorithm(make_vec_env(ScriptedEnv), seed=0, device="cpu", **{**small, **settings})


class Recorder:
    """A view that notes what it is told, and fails where it is told to."""

    def __init__(self, fails_in: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._fails_in = fails_in

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] == self._fails_in:
            raise ZeroDivisionError("no ink")

    def begin(self, done: int, total: int) -> None:
        self._note("begin", done, total)

    def advance(self, done: int) -> None:
        self._note("advance", done)

    def add(self, result: dict[str, Any]) -> None:
        self._note("add", result["iteration"])

    def close(self) -> None:
        self._note("close")


def test_a_view_hears_of_everything() -> None:
    view = Recorder()
    algorithm().learn(12, callback=ShowProgress(view))
    assert view.calls[0] == ("begin", 0, 12)
    assert [call for call in view.calls if call[0] == "add"] == [("add", 1), ("add", 2)]
    assert [call for call in view.calls if call[0] == "advance"] == [("advance", n) for n in range(1, 13)]
    assert view.calls[-1] == ("close",)


@pytest.fixture
def view() -> Iterator[Recorder]:
    """A view at the door, beside the one that comes with the package."""
    recorder = Recorder()
    VIEWS.add("recorder", lambda: recorder)
    yield recorder
    VIEWS.remove("recorder")


def test_a_view_at_the_door_is_shown_when_a_progress_bar_is_asked_for(view: Recorder) -> None:
    algorithm().learn(12)
    assert view.calls == []
    algorithm().learn(12, progress_bar=True)
    assert view.calls[0] == ("begin", 0, 12)
    assert view.calls[-2:] == [("close",)] * 2  # at the end of the training, and when `learn` returns


@pytest.mark.parametrize("fails_in", ["begin", "advance", "add", "close"])
def test_a_view_that_fails_is_closed_and_the_training_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    monkeypatch.setattr(logging.getLogger("marl_sb3"), "propagate", True)
    view = Recorder(fails_in)
    assert algorithm().learn(12, callback=ShowProgress(view)).num_timesteps == 12
    assert [call[0] for call in view.calls].count(fails_in) <= 2  # the last one may be closing
    assert view.calls[-1] == ("close",)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["the display has failed, and shows nothing more: ZeroDivisionError: no ink"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_of_the_training_gives_the_terminal_back(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails(MultiAgentCallback):
        def _on_step(self) -> bool:
            raise error

    closed = []
    monkeypatch.setattr("marl_sb3.extensions.display.progress.PlainLines.close", lambda self: closed.append(True))
    with pytest.raises(error):
        algorithm().learn(12, callback=[Fails()], progress_bar=True)
    assert closed == [True]


def test_a_progress_bar_is_shown_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    algorithm().learn(12)
    assert capsys.readouterr().out == ""
    algorithm().learn(12, progress_bar=True)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("iteration 1: 6 of 12 env steps, return 9.00 (a 3.00, b 6.00), ")
    assert shown[-1].startswith("iteration 2: 12 of 12 env steps")


def test_printed_metrics_end_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", shown)
    long = {"ä" * 60 + str(i): (3, "truncated") for i in range(2)}
    env = make_vec_env(lambda: ScriptedEnv(long))
    trained = MultiAgentAlgorithm(env, seed=0, device="cpu", verbose=1, n_steps=6, batch_size=4).learn(6)
    assert trained.iteration == 1
    assert b"episode_return_mean" in shown.buffer.getvalue()


def test_a_machine_that_tells_nothing_of_its_load_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> float:
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr(psutil, "cpu_percent", hidden)
    monkeypatch.setattr(psutil, "virtual_memory", hidden)
    assert algorithm().train_iteration()["perf"] == {"cpu_util_percent": None, "ram_util_percent": None}
