"""Stock SB3 algorithms, callbacks and wrappers on a multi-agent env, unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize, VecVideoRecorder
from toy_envs import ScriptedEnv

from marl_sb3 import make_vec_env

ROWS, STEPS = 4, 20  # of the arena below, and of its episodes


def arena(seed: int = 0, **kwargs: Any) -> VecEnv:
    return make_vec_env("arena", n_envs=2, seed=seed, max_timesteps=STEPS, **kwargs).as_sb3_vec_env()


def tiny_ppo(env: VecEnv, **kwargs: Any) -> PPO:
    settings = {"n_steps": 10, "batch_size": 20, "n_epochs": 1, "policy_kwargs": {"net_arch": [8]}, "device": "cpu"}
    return PPO("MlpPolicy", env, **{**settings, **kwargs})


def returns_of(model: PPO, env: VecEnv, episodes: int) -> list[list[float]]:
    """The greedy policy's returns, (episodes, rows), added up here."""
    played, observations = [], env.reset()
    for _ in range(episodes):
        total = np.zeros(env.num_envs)
        for _ in range(STEPS):
            observations, rewards, dones, _ = env.step(model.predict(observations, deterministic=True)[0])
            total += rewards
        assert dones.all()
        played.append(total.tolist())
    return played


# Algorithms


def trained_parameters(seed: int) -> list[float]:
    model = tiny_ppo(make_vec_env("arena", n_envs=2, max_timesteps=STEPS).as_sb3_vec_env(), seed=seed)
    model.learn(120)
    assert model.num_timesteps == 120
    return [float(parameter.detach().sum()) for parameter in model.policy.parameters()]


def test_ppo_learns_and_its_seed_repeats_the_run():
    first, again, other = (trained_parameters(seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize(("kind", "bootstraps"), [("truncated", True), ("terminated", False), ("both", False)])
def test_ppo_bootstraps_where_time_ran_out_and_nowhere_else(kind, bootstraps):
    unpaid = {"a": [0.0] * 3, "b": [0.0] * 3}
    vec = make_vec_env(ScriptedEnv, seed=0, script={"a": (3, kind), "b": (3, kind)}, rewards=unpaid)
    model = tiny_ppo(vec.as_sb3_vec_env(), n_steps=3, batch_size=6, learning_rate=0.0, gamma=0.5, seed=0)
    model.learn(6)
    final = np.array([[1, 1, 3], [2, 1, 3]], dtype=np.float32)
    values = model.policy.predict_values(model.policy.obs_to_tensor(final)[0]).detach().numpy().flatten()
    assert model.rollout_buffer.rewards[:2].tolist() == [[0, 0], [0, 0]]
    np.testing.assert_allclose(model.rollout_buffer.rewards[2], 0.5 * values * bootstraps, rtol=1e-6)


def test_replay_buffer_gets_final_observations_and_time_limits():
    vec = make_vec_env(ScriptedEnv, seed=0, script={"a": (3, "truncated"), "b": (3, "terminated")})
    model = DQN("MlpPolicy", vec.as_sb3_vec_env(), learning_starts=100, buffer_size=100, device="cpu")
    model.learn(8)
    stored = model.replay_buffer
    assert stored.next_observations[:4, 0].tolist() == [[1, 1, 1], [1, 1, 2], [1, 1, 3], [1, 2, 1]]
    assert stored.dones[:4].tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]
    assert stored.timeouts[:4].tolist() == [[0, 0], [0, 0], [1, 0], [0, 0]]


def test_evaluate_policy_returns_the_mean_over_all_rows():
    model = tiny_ppo(arena(), seed=0)
    mean, _ = evaluate_policy(model, VecMonitor(arena(seed=5)), n_eval_episodes=2 * ROWS)
    assert mean == pytest.approx(np.mean(returns_of(model, arena(seed=5), episodes=2)))
    rewards, lengths = evaluate_policy(model, arena(seed=5), ROWS, return_episode_rewards=True, warn=False)
    assert rewards == returns_of(model, arena(seed=5), episodes=1)[0]
    assert lengths == [STEPS] * ROWS


# Callbacks


def test_eval_callback_measures_the_policy(tmp_path: Path):
    model = tiny_ppo(VecMonitor(arena()), learning_rate=0.0, seed=0)
    evaluation = EvalCallback(
        VecMonitor(arena(seed=5)),
        n_eval_episodes=2 * ROWS,
        eval_freq=10,
        log_path=str(tmp_path),
        best_model_save_path=str(tmp_path),
        verbose=0,
    )
    model.learn(10 * ROWS, callback=evaluation)
    played = returns_of(model, arena(seed=5), episodes=2)
    assert evaluation.last_mean_reward == pytest.approx(np.mean(played))
    with np.load(tmp_path / "evaluations.npz") as saved:
        np.testing.assert_allclose(saved["results"].flatten(), np.ravel(played), rtol=1e-6)
    assert (tmp_path / "best_model.zip").is_file()


def test_checkpoint_callback_saves_a_model_that_acts_alike(tmp_path: Path):
    model = tiny_ppo(arena(), seed=0)
    model.learn(20 * ROWS, callback=CheckpointCallback(save_freq=10, save_path=str(tmp_path), name_prefix="arena"))
    assert {path.name for path in tmp_path.iterdir()} == {"arena_40_steps.zip", "arena_80_steps.zip"}
    model.save(tmp_path / "last")
    loaded = PPO.load(tmp_path / "last", env=arena(), device="cpu")
    assert returns_of(loaded, arena(), episodes=1) == returns_of(model, arena(), episodes=1)


# Wrappers


def test_vec_monitor_reports_return_and_length_of_each_row(tmp_path: Path):
    monitored, plain = VecMonitor(arena(), str(tmp_path / "log")), arena()
    rng = np.random.default_rng(0)
    monitored.reset()
    plain.reset()
    for _ in range(2):
        total = np.zeros(ROWS, np.float32)
        for _ in range(STEPS):
            actions = rng.integers(0, 4, ROWS)
            infos = monitored.step(actions)[-1]
            total += plain.step(actions)[1]
        assert [info["episode"]["r"] for info in infos] == total.tolist()
        assert [info["episode"]["l"] for info in infos] == [STEPS] * ROWS
    monitored.close()
    assert len((tmp_path / "log.monitor.csv").read_text().splitlines()) == 2 + 2 * ROWS


def test_vec_normalize_sees_every_row_and_normalizes_final_observations():
    raw = make_vec_env(ScriptedEnv, n_envs=2).as_sb3_vec_env()
    normalized = VecNormalize(make_vec_env(ScriptedEnv, n_envs=2).as_sb3_vec_env())
    shown = [raw.reset()]
    np.testing.assert_allclose(normalized.reset(), normalized.normalize_obs(shown[0]))
    for _ in range(3):
        observations, _, _, infos = raw.step(np.zeros(4, int))
        shown.append(observations)
        seen, _, dones, normalized_infos = normalized.step(np.zeros(4, int))
        np.testing.assert_allclose(seen, normalized.normalize_obs(observations))
    assert dones.all()
    rows = np.concatenate(shown)
    np.testing.assert_allclose(normalized.obs_rms.mean, rows.mean(axis=0), rtol=1e-3)
    assert normalized.obs_rms.count == pytest.approx(len(rows), abs=1e-3)
    for info, normalized_info in zip(infos, normalized_infos, strict=True):
        expected = normalized.normalize_obs(info["terminal_observation"])
        np.testing.assert_allclose(normalized_info["terminal_observation"], expected)


def test_vec_video_recorder_writes_a_frame_per_step(tmp_path: Path, capfd):
    import imageio_ffmpeg  # comes with moviepy

    rows = arena(height=2, width=2, render_mode="rgb_array")
    recorder = VecVideoRecorder(rows, str(tmp_path), record_video_trigger=lambda step: step == 0, video_length=5)
    recorder.reset()
    for _ in range(6):
        recorder.step(np.zeros(ROWS, int))
    recorder.close()
    (video,) = tmp_path.iterdir()
    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(video))
    assert frames == 6
