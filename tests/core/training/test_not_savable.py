"""What a checkpoint cannot hold is refused before the training, or left out and said so."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch as th
from small_trainings import SMALL, Remembers, arena, assert_same, build
from stable_baselines3.common.policies import ActorCriticPolicy

from marl_sb3 import MultiAgentAlgorithm, PolicySpec
from marl_sb3.errors import ConfigError


class HalfPrecision(ActorCriticPolicy):
    """Keeps a tensor of a dtype that NumPy does not have."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("extra", th.zeros(2, dtype=th.bfloat16))


class Storyteller(ActorCriticPolicy):
    """Keeps something else than tensors."""

    def get_extra_state(self) -> str:
        return "once upon a time"

    def set_extra_state(self, state: str) -> None:
        pass


class Unpicklable:
    """A schedule that holds a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, progress: float) -> float:
        return 1e-3 * progress


class Hoarder(th.optim.SGD):
    """Keeps a list for each parameter."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["all"] = ["x"]


class Clever(th.optim.SGD):
    """Has a setting that is a function."""

    def __init__(self, params: Any, lr: float = 0.1, trick: Any = len) -> None:
        super().__init__(params, lr=lr)
        self.param_groups[0]["trick"] = trick


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (PolicySpec(policy=HalfPrecision), r"policy.extra has dtype torch.bfloat16, which a checkpoint cannot hold"),
        (PolicySpec(policy=Storyteller), r"policy._extra_state has str, which a checkpoint cannot hold"),
        (
            PolicySpec(policy_kwargs={"optimizer_class": Hoarder}),
            r"policy.optimizer \(Hoarder\) has state that a",
        ),
        (
            PolicySpec(policy_kwargs={"optimizer_class": Clever}),
            r"policy.optimizer \(Clever\) has settings that",
        ),
    ],
)
def test_what_could_not_be_saved_is_refused_before_any_training(spec: PolicySpec, message: str) -> None:
    with pytest.raises(ConfigError, match=f"policy 'all' could not be saved: {message}"):
        MultiAgentAlgorithm(arena(), {"all": spec}, **SMALL)


def test_a_callback_that_remembers_what_no_checkpoint_holds_is_refused_before_any_training() -> None:
    algorithm = build("shared, batched")
    with pytest.raises(
        ConfigError, match=r"Remembers.get_state\(\) does not return a mapping of names to plain data: finite numbers"
    ):
        algorithm.learn(72, callback=Remembers({1, 2}))
    assert algorithm.num_timesteps == 0


def test_a_state_that_turns_into_something_else_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    algorithm, callback = build("shared, batched", seed=5), Remembers(1.5)
    algorithm.learn(72, callback=callback)
    callback.memory = float("nan")
    algorithm.save(tmp_path / "saved")
    assert "the checkpoint is without the state of Remembers" in caplog.text
    again, fresh = MultiAgentAlgorithm.load(tmp_path / "saved", arena(), device="cpu"), Remembers(2.5)
    again.learn(72, callback=fresh, reset_num_timesteps=False)
    assert fresh.memory == 2.5
    assert fresh.n_calls == 2 * callback.n_calls


def test_episodes_that_no_checkpoint_holds_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm, reason = build("shared, batched", seed=5), "something other than plain data"
    algorithm.train_iteration()
    with monkeypatch.context() as patch:
        patch.setattr(algorithm.env, "get_state", lambda: {"numbers": {1, 2}})
        for _ in range(2):
            algorithm.save(tmp_path / "saved")
    assert caplog.text.count(reason) == 1
    caplog.clear()
    again = MultiAgentAlgorithm.load(tmp_path / "saved", arena(), device="cpu")
    assert_same(again, algorithm)
    assert [record.message for record in caplog.records if reason in record.message] == [
        record.message for record in caplog.records
    ]
    assert "inexact: new episodes begin in all envs" in caplog.text
    again.train_iteration()
