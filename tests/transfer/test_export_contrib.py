"""Policies of sb3-contrib's algorithms in files: zips open with sb3-contrib; ONNX where a graph can say all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
from toy_envs import ScriptedEnv

from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.config.algorithms import algorithm_info
from marl_sb3.transfer.export import export_policies

pytestmark = pytest.mark.usefixtures("one_onnx_registry")
SMALL: dict[str, Any] = {"n_steps": 4, "batch_size": 4}
NETWORKS = {"recurrent_ppo": {"net_arch": [4], "lstm_hidden_size": 4}}
SEEN = np.random.default_rng(0).uniform(-2, 2, (5, 3)).astype(np.float32)


def trained(name: str) -> MultiAgentAlgorithm:
    env = make_vec_env(ScriptedEnv, masked=name == "maskable_ppo")
    network = NETWORKS.get(name, {"net_arch": [4]})
    spec = PolicySpec(algorithm_info(name).algorithm_class, learning_rate=0.1, policy_kwargs=network, **SMALL)
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, seed=0, device="cpu")
    algorithm.train_iteration()
    return algorithm


@pytest.mark.parametrize("name", ["trpo", "maskable_ppo", "recurrent_ppo"])
def test_sb3_contrib_opens_the_zip_and_predicts_the_same(name: str, tmp_path: Path) -> None:
    algorithm = trained(name)
    (file,) = export_policies(algorithm.bundle(), "sb3", tmp_path)
    ours = algorithm.policies["p"]
    loaded: Any = getattr(sb3_contrib, type(ours).__name__).load(file.path, device="cpu")
    expected, found = (policy.predict(SEEN, deterministic=True)[0] for policy in (ours, loaded))
    np.testing.assert_array_equal(found, expected)
    assert loaded.n_steps == 4
    assert not type(loaded.rollout_buffer).__module__.startswith("marl_sb3")


def test_trpo_has_an_onnx_graph(tmp_path: Path) -> None:
    (file,) = export_policies(trained("trpo").bundle(), "onnx", tmp_path)
    assert file.difference is not None
    assert file.difference < 1e-4


@pytest.mark.parametrize(
    ("name", "words"),
    [("maskable_ppo", "MaskablePPO needs action masks"), ("recurrent_ppo", "RecurrentPPO needs recurrent state")],
)
def test_masks_and_memory_have_no_onnx_graph(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"policy 'p': {words}, which the ONNX export does not cover;"):
        export_policies(trained(name).bundle(), "onnx", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
