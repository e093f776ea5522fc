"""Compiled envs do what the envs of Gymnasium do in whose place they are; where they would not, these are used."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from small_runs import broken

import marl_sb3
from marl_sb3 import make_vec_env, register_env
from marl_sb3.core.vec_env import BatchedVecEnv, SyncVecEnv
from marl_sb3.doors import BATCHED_TWINS, REGISTERED_ENVS
from marl_sb3.envs.compiled import require_same

STEPS = 500  # of 4 envs each
TWINS: dict[str, tuple[str, dict[str, Any]]] = {
    "cart pole": ("CartPole-v1", {}),
    "cart pole v0": ("CartPole-v0", {"max_episode_steps": 12}),
    "acrobot": ("Acrobot-v1", {}),
    "pendulum": ("Pendulum-v1", {}),
    "pendulum on the moon": ("Pendulum-v1", {"g": 1.62, "max_episode_steps": 7}),
    "mountain car": ("MountainCar-v0", {}),
    "mountain car that must be fast": ("MountainCar-v0", {"goal_velocity": 0.01}),
    "continuous mountain car": ("MountainCarContinuous-v0", {}),
    "continuous mountain car that must be fast": ("MountainCarContinuous-v0", {"goal_velocity": 0.02}),
    "cart pole, other rewards": ("CartPole-v1", {"sutton_barto_reward": True, "max_episode_steps": -1}),
}


@pytest.mark.parametrize("name", TWINS)
def test_twins_do_what_the_originals_do(name: str) -> None:
    env_id, env_kwargs = TWINS[name]
    require_same(env_id, STEPS, seed=1, n_envs=4, **env_kwargs)


@pytest.mark.proof
@pytest.mark.parametrize("name", TWINS)
def test_twins_do_what_the_originals_do_for_long(name: str) -> None:
    env_id, env_kwargs = TWINS[name]
    require_same(env_id, 25_000, seed=2, n_envs=4, **env_kwargs)


PLACES = {  # random ones from all over the state space, where random actions would hardly lead
    "Acrobot-v1": ([-3.2, -3.2, -13.0, -29.0], [3.2, 3.2, 13.0, 29.0]),
    "CartPole-v1": ([-2.5, -3.0, -0.25, -3.0], [2.5, 3.0, 0.25, 3.0]),
    "MountainCar-v0": ([-1.3, -0.08], [0.7, 0.08]),
    "MountainCarContinuous-v0": ([-1.3, -0.08], [0.7, 0.08]),
    "Pendulum-v1": ([-30.0, -9.0], [30.0, 9.0]),
}


@pytest.mark.parametrize("env_id", PLACES)
def test_single_steps_from_anywhere_are_those_of_the_originals(env_id: str) -> None:
    rng, number = np.random.default_rng(0), 1000
    original: Any = gymnasium.make(env_id).unwrapped
    twin = BATCHED_TWINS[env_id]
    batch: Any = twin(partial(gymnasium.make, env_id))["make_batched"](number)
    batch.reset(range(number), range(number))
    low, high = np.array(PLACES[env_id])
    box = isinstance(original.action_space, gymnasium.spaces.Box)
    drawn = rng.normal(0, 2, (number, 1)) if box else rng.integers(original.action_space.n, size=number)
    actions = drawn.astype(original.action_space.dtype)
    expected = []
    for index in range(number):
        place = rng.uniform(low, high)
        original.reset(seed=index)
        if "Continuous" in env_id:  # episodes begin in float64 and at rest, and go on in float32
            place = place.astype(np.float32) if index % 2 else place * [1, 0]
        original.state = place
        twin.copy(batch.states[index], original)
        observation, reward, terminated, *_ = original.step(actions[index])
        expected.append((observation, reward, terminated))
    step = batch.step(actions[:, None])
    observations, rewards, terminated = zip(*expected, strict=True)
    np.testing.assert_array_equal(batch.observations()[:, 0], np.array(observations))
    np.testing.assert_array_equal(step.rewards[:, 0], rewards)
    np.testing.assert_array_equal(step.terminated[:, 0], terminated)
    assert len(set(terminated)) == 2 or env_id == "Pendulum-v1"


def test_what_a_twin_does_not_cover_is_stepped_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="marl_sb3")
    assert isinstance(make_vec_env("CartPole-v1", 2), BatchedVecEnv)
    assert caplog.messages == []
    assert isinstance(make_vec_env("CartPole-v1", 2, vectorizer="sync"), SyncVecEnv)
    assert isinstance(make_vec_env("CartPole-v1", 2, render_mode="rgb_array"), SyncVecEnv)
    assert caplog.messages == ["envs are stepped one by one: render_mode is 'rgb_array'"]
    with pytest.raises(marl_sb3.errors.ConfigError, match="render_mode is 'rgb_array'; use the sync vectorizer"):
        make_vec_env("CartPole-v1", 2, vectorizer="batched", render_mode="rgb_array")


def test_an_env_that_the_user_registers_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    register_env("CartPole-v1", lambda: gymnasium.make("CartPole-v1"))
    try:
        assert isinstance(make_vec_env("CartPole-v1"), SyncVecEnv)
    finally:
        REGISTERED_ENVS.remove("CartPole-v1")
    monkeypatch.setitem(gymnasium.registry, "CartPole-v1", replace(gymnasium.spec("Acrobot-v1"), id="CartPole-v1"))
    assert isinstance(make_vec_env("CartPole-v1"), SyncVecEnv)


def test_another_version_of_the_original_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = gymnasium.make("CartPole-v1").unwrapped
    step = type(made).step

    def heavier(self: Any, action: Any) -> Any:
        self.masscart = 2.0
        self.total_mass = self.masspole + self.masscart
        return step(self, action)

    monkeypatch.setattr(type(made), "step", heavier)
    env = make_vec_env("CartPole-v1", max_episode_steps=77)  # other arguments than those that were compared before
    assert isinstance(env, SyncVecEnv)


def test_episodes_begin_with_options() -> None:
    sync, batched = (make_vec_env("CartPole-v1", 2, 3, name) for name in ("sync", "batched"))
    options = [{"low": -0.2, "high": 0.2}, {}]
    steps = [env.reset(options=options) for env in (sync, batched)]
    np.testing.assert_array_equal(steps[0].observations[0], steps[1].observations[0])
    actions = [np.zeros((2, 1), np.int64)]
    np.testing.assert_array_equal(sync.step(actions).observations[0], batched.step(actions).observations[0])


def test_a_run_that_stepped_envs_one_by_one_goes_on_with_new_episodes(in_tmp: Path) -> None:
    broken("run", env="CartPole-v1", vectorizer="sync")
    config = in_tmp / "run" / "config.yaml"
    config.write_text(config.read_text().replace("vectorizer: sync", "vectorizer: auto"))
    run = marl_sb3.train(resume="run")
    assert run.algorithm.iteration == 8
