"""The first signal ends the training cleanly, a second one at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, make_vec_env
from marl_sb3.callbacks import StopOnSignal

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class At(MultiAgentCallback):
    """Does something when so many env steps, or so many iterations, have been done."""

    def __init__(self, action: Callable[[], None], steps: int = 0, iterations: int = 0) -> None:
        super().__init__()
        self.action, self.steps, self.iterations = action, steps, iterations

    def _on_step(self) -> bool:
        if self.num_timesteps == self.steps:
            self.action()
        return True

    def on_iteration_end(self, result: dict[str, Any]) -> bool:
        if result["iteration"] == self.iterations:
            self.action()
        return True


def learn(stop: StopOnSignal, **when: Any) -> MultiAgentAlgorithm:
    settings = {"n_steps": 6, "batch_size": 4, "n_epochs": 1, "policy_kwargs": {"net_arch": [2]}}
    algorithm = MultiAgentAlgorithm(make_vec_env(ScriptedEnv), seed=0, device="cpu", **settings)
    return algorithm.learn(60, callback=[At(**when), stop])


def send(*numbers: signal.Signals) -> Callable[[], None]:
    def action() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    return action


@pytest.mark.parametrize("sent", [*([number] for number in SIGNALS), *([signal.SIGHUP, other] for other in SIGNALS)])
@pytest.mark.parametrize("when", [{"steps": 8}, {"iterations": 2}], ids=["in a rollout", "in an update"])
def test_a_signal_ends_the_training_with_the_iteration(when: dict[str, int], sent: list[signal.Signals]) -> None:
    """A closed terminal says so twice, and interrupts nothing."""
    with StopOnSignal() as stop:
        algorithm = learn(stop, action=send(*sent), **when)
    assert stop.received == sent[0].name
    assert (algorithm.num_timesteps, algorithm.iteration) == (12, 2)


@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)],
)
def test_a_second_signal_interrupts_at_once(first: signal.Signals, second: signal.Signals) -> None:
    with StopOnSignal() as stop, pytest.raises(KeyboardInterrupt):
        learn(stop, action=send(first, second), steps=8)
    assert stop.received == first.name


def test_without_a_signal_the_training_runs_to_its_end() -> None:
    with StopOnSignal() as stop:
        assert learn(stop, action=send()).num_timesteps == 60
    assert stop.received is None


def test_former_handlers_come_back_whatever_happened() -> None:
    former = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ZeroDivisionError), StopOnSignal() as stop:
        learn(stop, action=lambda: 1 / 0, steps=3)
    assert [signal.getsignal(number) for number in SIGNALS] == former


def test_outside_the_main_thread_it_leaves_handlers_alone() -> None:
    former, seen = [signal.getsignal(number) for number in SIGNALS], []

    def run() -> None:
        with StopOnSignal() as stop:
            seen.extend(signal.getsignal(number) for number in SIGNALS)
            seen.append(stop.received)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [*former, None]
