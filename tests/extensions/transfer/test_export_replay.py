"""Policies of algorithms with a replay buffer: their zips open in stock SB3, their ONNX graphs act as they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from gymnasium import spaces
from toy_envs import SampledEnv, batch

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, load_policies, make_vec_env
from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.extensions.transfer.export import export_policies

pytestmark = pytest.mark.usefixtures("one_onnx_registry")
SEEN = spaces.Box(-1, 1, (3,))
FORCES = spaces.Box(np.array([-0.1, -2.0], dtype=np.float32), np.array([0.1, 2.0], dtype=np.float32))
IMAGE = spaces.Box(0, 255, (36, 40, 3), np.uint8)
MIXED = spaces.Dict({"place": spaces.Discrete(4), "vector": SEEN})
SMALL = {"policy_kwargs": {"net_arch": [8]}}
CASES: dict[str, tuple[spaces.Space, str, dict[str, Any]]] = {
    "dqn": (SEEN, "MlpPolicy", SMALL),
    "qrdqn": (
        IMAGE,
        "CnnPolicy",
        {"policy_kwargs": {"n_quantiles": 5, "features_extractor_kwargs": {"features_dim": 8}}},
    ),
    "maskable_dqn": (SEEN, "MlpPolicy", SMALL),
    "maskable_qrdqn": (SEEN, "MlpPolicy", {"policy_kwargs": {"net_arch": [8], "n_quantiles": 5, "dueling": True}}),
    "qmix": (SEEN, "MlpPolicy", SMALL),
    "sac": (SEEN, "MlpPolicy", {**SMALL, "use_sde": True}),
    "td3": (MIXED, "MultiInputPolicy", {**SMALL, "action_noise": {"normal": 0.1}}),
    "tqc": (spaces.Discrete(5), "MlpPolicy", SMALL),
    "crossq": (SEEN, "MlpPolicy", SMALL),
    "iql": (MIXED, "MultiInputPolicy", SMALL),
    "iql, Discrete": (SEEN, "MlpPolicy", SMALL),
}
MASKED = ["maskable_dqn", "maskable_qrdqn", "qmix"]
OF_VALUES = [name for name in CASES if "dqn" in name or name == "qmix"]
OUTPUTS = {**{name: ["q_values"] for name in OF_VALUES}, "iql": ["mean", "log_std"], "iql, Discrete": ["logits"]}


def trained(name: str) -> MultiAgentAlgorithm:
    seen, policy, settings = CASES[name]
    done = spaces.Discrete(3) if name in OF_VALUES or "Discrete" in name else FORCES
    masked = name in MASKED
    env = make_vec_env(
        SampledEnv, observation_space=seen, action_space=done, script={"a": (9, "truncated")}, masked=masked
    )
    more = {"buffer_size": 30, "learning_starts": 4, "batch_size": 4, "learning_rate": 0.01, **settings}
    spec = PolicySpec(algorithm_info(name.partition(",")[0]).algorithm_class, policy, **more)
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, n_steps=20, seed=0, device="cpu")
    return algorithm.learn(20)


@pytest.mark.parametrize("name", CASES)
def test_saved_policies_act_as_the_trained_ones_from_a_checkpoint_a_zip_and_a_graph(name: str, tmp_path: Path) -> None:
    algorithm = trained(name)
    observations = batch(algorithm.env.groups[0].observation_space, 7)
    masks = np.random.default_rng(0).random((7, 3)) < 0.5
    masks[np.arange(7), np.arange(7) % 3] = True
    given: dict[str, Any] = {"action_mask": masks} if name in MASKED else {}
    of_a, masked = ({"action_masks": each} if given else {} for each in ({"a": masks}, masks))
    expected = algorithm.predict({"a": observations}, deterministic=True, **of_a)["a"]
    if given:
        assert masks[np.arange(7), expected].all()
    bundle = load_policies(algorithm.save(tmp_path / "saved"), device="cpu")
    np.testing.assert_array_equal(bundle.predict({"a": observations}, deterministic=True, **of_a)["a"], expected)

    (zipped,) = export_policies(bundle, "sb3", tmp_path / "zip")
    stock = algorithm_info(name.partition(",")[0]).algorithm_class.load(zipped.path, device="cpu")
    np.testing.assert_array_equal(stock.predict(observations, deterministic=True, **masked)[0], expected)

    (graph,) = export_policies(bundle, "onnx", tmp_path / "onnx")
    session = onnxruntime.InferenceSession(graph.path.read_bytes(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    assert names == ["actions", *OUTPUTS.get(name, [])]
    given |= (
        {f"observation.{key}": part for key, part in observations.items()}
        if isinstance(observations, dict)
        else {"observation": observations}
    )
    np.testing.assert_allclose(session.run(["actions"], given)[0], expected, atol=1e-5)
