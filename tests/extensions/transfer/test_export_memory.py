"""Policies of RecurrentDQN and RecurrentSAC in files: zips and graphs that keep their memory with the caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from gymnasium import spaces
from toy_envs import SampledEnv

from marl_sb3 import MultiAgentAlgorithm, PolicySpec, load_policies, make_vec_env
from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.extensions.transfer.export import export_policies

pytestmark = pytest.mark.usefixtures("one_onnx_registry")
SEEN, FORCES = spaces.Box(-2, 2, (3,)), spaces.Box(-3, 5, (2,))
SMALL = {"buffer_size": 30, "learning_starts": 4, "batch_size": 4, "learning_rate": 0.01}
STATES = ("hidden_state", "cell_state")


@pytest.mark.parametrize(
    ("name", "cell", "layers"),
    [
        ("recurrent_dqn", "gru", 1),
        ("recurrent_sac", "lstm", 2),
        pytest.param("recurrent_dqn", "lstm", 2, marks=pytest.mark.proof),  # a second or two each
        pytest.param("recurrent_sac", "gru", 1, marks=pytest.mark.proof),
    ],
)
def test_zips_and_graphs_act_as_the_trained_policy_over_an_episode(
    name: str, cell: str, layers: int, tmp_path: Path
) -> None:
    network = {"net_arch": [8], "lstm_hidden_size": 5, "n_lstm_layers": layers, "cell": cell}
    spec = PolicySpec(name, policy_kwargs=network, **SMALL)
    action_space: Any = FORCES if name.endswith("sac") else spaces.Discrete(3)
    env = make_vec_env(SampledEnv, observation_space=SEEN, action_space=action_space, script={"a": (9, "truncated")})
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, n_steps=20, seed=0, device="cpu").learn(20)
    bundle = load_policies(algorithm.save(tmp_path / "saved"), device="cpu")
    (graph,) = export_policies(bundle, "onnx", tmp_path / "onnx")
    (zipped,) = export_policies(bundle, "sb3", tmp_path / "zip")
    loaded = algorithm_info(name).algorithm_class.load(zipped.path, device="cpu")
    session = onnxruntime.InferenceSession(graph.path.read_bytes(), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    assert names == ["actions", *(["q_values"] if name.endswith("dqn") else []), *(f"next_{state}" for state in STATES)]
    rng, state = np.random.default_rng(0), None
    kept = {each: np.zeros((layers, 7, 5), np.float32) for each in STATES}
    for step in range(5):
        seen, starts = rng.uniform(-2, 2, (7, 3)).astype(np.float32), rng.random(7) < 0.3
        if step == 0:
            starts[:] = True
        expected, state = algorithm.policies["p"].predict(seen, state, starts, deterministic=True)
        from_zip, _ = loaded.predict(seen, tuple(kept.values()), starts, deterministic=True)
        np.testing.assert_allclose(from_zip, expected, atol=1e-5)
        found = dict(
            zip(names, session.run(names, {"observation": seen, "episode_start": starts, **kept}), strict=True)
        )
        np.testing.assert_allclose(found["actions"], expected, atol=1e-4)
        kept = {each: found[f"next_{each}"] for each in STATES}
        for own, other in zip(state, kept.values(), strict=True):
            np.testing.assert_allclose(own, other, atol=1e-5)
