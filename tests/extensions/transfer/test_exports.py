"""Exported policies with processing act as the policies that were trained."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize
from toy_envs import SampledEnv, batch

from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.transfer.export import export_policies

pytestmark = pytest.mark.usefixtures("one_onnx_registry")
VECTOR = spaces.Box(-50, 90, (3,))
DICT = spaces.Dict({"near": VECTOR, "mode": spaces.Discrete(3)})
FORCE = spaces.Box(np.array([0, -3], np.float32), np.array([5, 9], np.float32))
NORMALIZE = {"normalize_observations": True, "normalize_rewards": True}


def trained(observed: spaces.Space = VECTOR, policy: str = "MlpPolicy", **processing: Any) -> MultiAgentAlgorithm:
    env = make_vec_env(SampledEnv, n_envs=2, observation_space=observed, action_space=FORCE)
    settings = {"batch_size": 4, "n_epochs": 1, "learning_rate": 0.1, "policy_kwargs": {"net_arch": [4]}}
    return MultiAgentAlgorithm(
        env, n_steps=6, seed=1, device="cpu", **settings, **processing, policy=policy
    ).learn(24)  # fmt: skip


@pytest.mark.parametrize(
    ("observed", "policy", "processing"),
    [
        (VECTOR, "MlpPolicy", {**NORMALIZE, "rescale_actions": True}),
        (DICT, "MultiInputPolicy", {**NORMALIZE, "normalize_keys": ["near"]}),
        (spaces.Box(0, 255, (7, 9, 3), np.uint8), "auto", NORMALIZE),
    ],
)
def test_an_onnx_graph_takes_what_the_env_shows(observed: Any, policy: str, processing: Any, tmp_path: Path) -> None:
    algorithm = trained(observed, policy, **processing)
    (file,) = export_policies(algorithm.bundle(), "onnx", tmp_path)
    session, seen = onnxruntime.InferenceSession(file.path), batch(observed)
    inputs = {f"observation.{key}": seen[key] for key in seen} if isinstance(seen, dict) else {"observation": seen}
    expected = algorithm.predict({"a": seen}, deterministic=True)["a"]
    np.testing.assert_allclose(session.run(["actions"], inputs)[0], expected, rtol=1e-4, atol=1e-5)
    metadata = {each.key: each.value for each in onnx.load(file.path).metadata_props}
    assert metadata["input"] == "observations of the env"


def test_an_onnx_graph_counts_as_the_env_does(tmp_path: Path) -> None:
    seen, done = spaces.Discrete(5, start=3), spaces.Discrete(4, start=7)
    env = make_vec_env(SampledEnv, n_envs=2, observation_space=seen, action_space=done)
    algorithm = MultiAgentAlgorithm(env, n_steps=6, batch_size=4, seed=1, device="cpu", learning_rate=0.1).learn(24)
    (file,) = export_policies(algorithm.bundle(), "onnx", tmp_path)
    actions = onnxruntime.InferenceSession(file.path).run(["actions"], {"observation": np.arange(3, 8)})[0]
    assert set(actions) <= {7, 8, 9, 10}
    np.testing.assert_array_equal(actions, algorithm.predict({"a": np.arange(3, 8)}, deterministic=True)["a"])


def test_an_onnx_graph_behind_a_memory_takes_processed_observations_and_says_so(tmp_path: Path) -> None:
    algorithm = trained(frame_stack=3, normalize_observations=True, agent_indicator=True)
    (file,) = export_policies(algorithm.bundle(), "onnx", tmp_path)
    session = onnxruntime.InferenceSession(file.path)
    assert session.get_inputs()[0].shape[1] == 3 * 3 + 2
    metadata = {each.key: each.value for each in onnx.load(file.path).metadata_props}
    assert metadata["input"] == "processed observations"
    said = json.loads(metadata["processing"])
    assert said["order"] == ["normalize_observations", "frame_stack", "agent_indicator"]
    own = algorithm.parts.learners["shared"].processing.statistics["observations"]
    assert said["statistics"]["observations"]["mean"] == own.mean.tolist()


@pytest.mark.parametrize("observed", [VECTOR, DICT], ids=["vector", "Dict"])
def test_stock_sb3_acts_with_the_zip_and_its_vecnormalize(observed: Any, tmp_path: Path) -> None:
    keys = {"normalize_keys": ["near"]} if isinstance(observed, spaces.Dict) else {}
    policy = "MultiInputPolicy" if keys else "MlpPolicy"
    algorithm = trained(observed, policy, **NORMALIZE, **keys)
    export_policies(algorithm.bundle(), "sb3", tmp_path)
    env = make_vec_env(SampledEnv, observation_space=observed, action_space=FORCE).as_sb3_vec_env()
    normalize = VecNormalize.load(str(tmp_path / "shared.vecnormalize.pkl"), env)
    assert not normalize.training
    assert float(normalize.ret_rms.var) == float(
        algorithm.parts.learners["shared"].processing.statistics["returns"].var
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = stable_baselines3.PPO.load(tmp_path / "shared.zip")
    seen = batch(observed)
    actions, _ = model.predict(normalize.normalize_obs(seen), deterministic=True)
    np.testing.assert_array_equal(actions, algorithm.predict({"a": seen}, deterministic=True)["a"])
    said = json.loads((tmp_path / "shared.processing.json").read_text())
    assert said["settings"]["normalize_rewards"] is True


def test_files_beside_a_zip_are_replaced_or_refused_with_it(tmp_path: Path) -> None:
    export_policies(trained(**NORMALIZE).bundle(), "sb3", tmp_path)
    (tmp_path / "shared.zip").unlink()
    with pytest.raises(ConfigError, match=r"shared\.vecnormalize\.pkl exists already"):
        export_policies(trained().bundle(), "sb3", tmp_path)
    export_policies(trained().bundle(), "sb3", tmp_path, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["shared.zip"]
