"""PPO and RecurrentPPO alone on an SB3 `VecEnv`: their rollouts through the kernels are those of the stock classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

import marl_sb3
from marl_sb3.core.on_policy.rollout import MaskedRolloutBuffer, flat_samples
from marl_sb3.extensions.fast.fused_on_policy import FusedRollouts

SETTINGS = {"n_steps": 40, "batch_size": 40, "n_epochs": 2, "seed": 0, "device": "cpu"}


def vec_env(env_id: str = "CartPole-v1", limit: int = 9) -> VecEnv:
    """Three envs that run into a time limit now and then."""

    def limited(**kwargs: Any) -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(gymnasium.make(env_id).unwrapped, limit)

    return make_vec_env(limited, 3, seed=0)


class Seen(BaseCallback):
    """Keeps what a callback finds in its locals, and may stop the training."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.stop_after = stop_after
        self.steps: list[dict[str, Any]] = []
        self.rewards: list[Any] = []
        self.ended: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        self.steps.append(dict(self.locals))
        self.rewards.append(self.locals["rewards"].copy())
        return len(self.steps) != self.stop_after

    def _on_rollout_end(self) -> None:
        self.ended.append(dict(self.locals))


def trained(cls: Any, env: VecEnv, callback: BaseCallback | None = None) -> Any:
    if "Recurrent" in cls.__name__:
        return cls("MlpLstmPolicy", env, policy_kwargs={"lstm_hidden_size": 6}, **SETTINGS).learn(240, callback)
    return cls("MlpPolicy", env, **SETTINGS).learn(240, callback)


SIDES = [(stable_baselines3.PPO, marl_sb3.PPO), (sb3_contrib.RecurrentPPO, marl_sb3.RecurrentPPO)]


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_rollouts_with_time_limits_are_those_of_stock_sb3(env_id: str, sides: Any) -> None:
    theirs, ours = (trained(cls, vec_env(env_id)) for cls in sides)
    assert ours.kernels() is not None
    np.testing.assert_allclose(ours.rollout_buffer.rewards, theirs.rollout_buffer.rewards, rtol=2e-4, atol=2e-4)
    for name in ("observations", "actions", "values", "log_probs", "advantages", "returns"):
        a, b = (flat_samples(model.rollout_buffer, name).reshape(-1) for model in (theirs, ours))
        np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-4, err_msg=name)
    episodes = [[(info["r"], info["l"]) for info in model.ep_info_buffer] for model in (theirs, ours)]
    np.testing.assert_allclose(episodes[1], episodes[0], rtol=1e-5)


@pytest.mark.parametrize("sides", SIDES)
def test_a_forgotten_value_at_the_time_limit_would_be_found(monkeypatch: pytest.MonkeyPatch, sides: Any) -> None:
    monkeypatch.setattr(FusedRollouts, "_add_values_at_time_limits", lambda *_: None)
    with pytest.raises(AssertionError):
        test_rollouts_with_time_limits_are_those_of_stock_sb3("CartPole-v1", sides)


@pytest.mark.parametrize("sides", SIDES)
def test_callbacks_find_the_locals_that_they_find_in_stock_sb3(sides: Any) -> None:
    theirs, ours = Seen(), Seen()
    trained(sides[0], vec_env(), theirs)
    trained(sides[1], vec_env(), ours)
    assert len(ours.steps) == len(theirs.steps) == 80
    passing = {"idx", "done", "done_", "terminal_obs", "terminal_value", "terminal_lstm_state", "total_timesteps"}
    passing |= {"tb_log_name", "reset_num_timesteps", "log_interval", "progress_bar", "iteration"}
    for a, b in zip(theirs.steps, ours.steps, strict=True):
        assert set(a) - passing <= set(b)
        assert a["n_steps"] == b["n_steps"]
        for name in ("actions", "clipped_actions", "values", "log_probs", "new_obs", "dones", "obs_tensor"):
            assert a[name].shape == b[name].shape, name
            assert type(a[name]) is type(b[name]), name
    np.testing.assert_array_equal(ours.rewards, theirs.rewards)
    if "lstm_states" in theirs.steps[-1]:
        for a, b in zip(theirs.steps, ours.steps, strict=True):
            th.testing.assert_close(b["lstm_states"], a["lstm_states"], rtol=1e-3, atol=1e-5)
            assert th.equal(b["episode_starts"], a["episode_starts"])
    assert [step["n_steps"] for step in ours.ended] == [40, 40]
    assert [step["n_steps"] for step in theirs.ended] == [39 if "lstm_states" in theirs.ended[0] else 40] * 2


def test_a_callback_stops_the_rollout_where_it_stops_that_of_stock_sb3() -> None:
    theirs, ours = (trained(cls, vec_env(), Seen(stop_after=25)) for cls in (stable_baselines3.PPO, marl_sb3.PPO))
    assert ours.num_timesteps == theirs.num_timesteps == 75
    assert ours.rollout_buffer.pos == theirs.rollout_buffer.pos == 24


def test_stock_callbacks_evaluate_and_save(tmp_path: Path) -> None:
    checks = CheckpointCallback(save_freq=40, save_path=str(tmp_path))
    trained(marl_sb3.PPO, vec_env(), [checks, EvalCallback(vec_env(), eval_freq=40, verbose=0)])
    assert len(list(tmp_path.glob("*.zip"))) == 2


@pytest.mark.parametrize("part", ["all", "some", "some, and breaks"])
def test_the_kernel_estimates_advantages_with_the_bits_of_the_buffer(part: str) -> None:
    model = marl_sb3.PPO("MlpPolicy", vec_env(), rollout_buffer_class=MaskedRolloutBuffer, **SETTINGS)
    buffer, rng = model.rollout_buffer, np.random.default_rng(0)
    for name in ("rewards", "values"):
        setattr(buffer, name, rng.normal(size=(40, 3)).astype(np.float32))
    buffer.episode_starts[:] = rng.random((40, 3)) < 0.2
    if part != "all":
        buffer.acted = rng.random((40, 3)) < 0.6
    buffer.breaks = rng.random((40, 3)) < 0.2 if "breaks" in part else None
    found = []
    for compute in (buffer.compute_returns_and_advantage, model.compute_returns):
        compute(last_values=th.tensor([1.0, -2.0, 3.0]), dones=np.array([False, True, False]))
        found.append((buffer.advantages.copy(), buffer.returns.copy()))
        buffer.advantages.fill(np.nan)
    assert model.takes_fused_path()
    np.testing.assert_array_equal(*found)
