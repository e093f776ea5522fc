"""Statistics of SB3's `VecNormalize`, which only an explicit call unpickles."""

from __future__ import annotations

import pickle
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from marl_sb3 import PPO, ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env


def saved(path: Path, env: str = "Pendulum-v1", **settings: bool) -> VecNormalize:
    """What SB3 saves after some steps."""
    venv = VecNormalize(DummyVecEnv([lambda: gymnasium.make(env)]), **settings)
    venv.seed(3)
    venv.reset()
    for _ in range(9):
        venv.step([venv.action_space.sample()])
    venv.save(str(path))
    return venv


def algorithm(**processing: bool) -> MultiAgentAlgorithm:
    specs = {"p": PolicySpec(PPO, policy_kwargs={"net_arch": [4]}, **processing)}
    return MultiAgentAlgorithm(make_vec_env("Pendulum-v1"), specs, n_steps=4, batch_size=4, device="cpu")


def test_the_statistics_become_those_of_the_policy(tmp_path: Path) -> None:
    venv = saved(tmp_path / "vecnormalize.pkl")
    found = algorithm(normalize_observations=True, normalize_rewards=True)
    found.unpickle_vec_normalize("p", tmp_path / "vecnormalize.pkl")
    own = found.bundle().processing["p"]
    seen = np.array([[0.5, -0.5, 2.0]], np.float32)
    assert own.normalizer is not None
    np.testing.assert_array_equal(own.normalizer.normalized(seen), venv.normalize_obs(seen))
    returns = own.statistics["returns"]
    assert (returns.mean, returns.var, returns.count) == (venv.ret_rms.mean, venv.ret_rms.var, venv.ret_rms.count)
    found.train_iteration()
    assert own.statistics["returns"].count > venv.ret_rms.count  # it goes on from there


def test_what_does_not_fit_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "vecnormalize.pkl"
    found = algorithm(normalize_observations=True)
    before = found.bundle().processing["p"].get_state()
    with pytest.raises(ConfigError, match="unknown policy 'x'; accepted: p"):
        found.unpickle_vec_normalize("x", path)
    with pytest.raises(ConfigError, match="cannot be unpickled: FileNotFoundError"):
        found.unpickle_vec_normalize("p", path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ConfigError, match=r"holds a dict; accepted: what VecNormalize\.save"):
        found.unpickle_vec_normalize("p", path)
    saved(path, norm_obs=False)
    with pytest.raises(ConfigError, match="holds no statistics of observations"):
        found.unpickle_vec_normalize("p", path)
    saved(path, "MountainCarContinuous-v0")
    with pytest.raises(ConfigError, match=r"do not fit the policy: .*array of float64 \(2\)"):
        found.unpickle_vec_normalize("p", path)
    np.testing.assert_equal(found.bundle().processing["p"].get_state(), before)
    with pytest.raises(ConfigError, match="policy 'p' normalises nothing; accepted: a policy with"):
        algorithm().unpickle_vec_normalize("p", path)
