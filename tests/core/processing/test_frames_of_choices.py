"""Stacked frames of choices: the arena trains with them on the kernels, in all layouts alike, and acts so elsewhere."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import stable_baselines3
from small_trainings import same_weights

from marl_sb3 import ConfigError, MultiAgentAlgorithm, load_policies, make_vec_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.transfer.export import export_policies

SMALL: dict[str, Any] = {"n_steps": 6, "batch_size": 12, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}}


def trained(**layout: Any) -> MultiAgentAlgorithm:
    env = make_vec_env("arena", n_envs=2, seed=1, max_timesteps=5, height=4, **layout)
    return MultiAgentAlgorithm(env, frame_stack=3, seed=1, device="cpu", **SMALL).learn(24)


@pytest.fixture(scope="module")
def batched() -> MultiAgentAlgorithm:
    return trained(vectorizer="batched")


def test_the_arena_is_trained_by_the_kernels(batched: MultiAgentAlgorithm) -> None:
    policy: Any = batched.policies["shared"]
    assert policy.observation_space.nvec.tolist() == [41] * 6
    assert policy.takes_fused_path()


@pytest.mark.parametrize("layout", [{"vectorizer": "sync"}, {"vectorizer": "supersuit"}, {"n_workers": 2}], ids=str)
def test_all_layouts_train_the_same(layout: dict[str, Any], batched: MultiAgentAlgorithm) -> None:
    other = trained(**layout)
    other.env.close()
    assert same_weights(batched, other)


@pytest.mark.usefixtures("one_onnx_registry")
def test_saved_policies_act_as_the_trained_one(batched: MultiAgentAlgorithm, tmp_path: Path) -> None:
    """A checkpoint with its frames; an SB3 zip and an ONNX file without them."""
    seen, state = {"agent1": np.array([3, 8]), "agent2": np.array([8, 3])}, None
    loaded = load_policies(batched.save(tmp_path / "saved"), device="cpu")
    (zipped,) = export_policies(loaded, "sb3", tmp_path)
    stock = stable_baselines3.PPO.load(zipped.path, device="cpu")
    (graph,) = export_policies(loaded, "onnx", tmp_path)
    session = onnxruntime.InferenceSession(graph.path)
    for _ in range(4):
        expected, after = batched.predict_with_state(seen, state, deterministic=True)
        actions, same = loaded.predict_with_state(seen, state, deterministic=True)
        assert actions == expected
        np.testing.assert_array_equal(same["agent1"][0], after["agent1"][0])
        action, _ = stock.predict(after["agent1"][0][0], deterministic=True)
        assert action == expected["agent1"]
        assert session.run(["actions"], {"observation": after["agent1"][0]})[0] == expected["agent1"]
        state = after
    assert after["agent1"][0].tolist() == [[3, 8] * 3]


def test_frames_of_a_forged_checkpoint_are_choices(batched: MultiAgentAlgorithm) -> None:
    rows = batched.parts.learners["shared"].actor.processing
    state: Any = deepcopy(rows.get_state())
    rows.read_state(StateReader(state))
    state["memory"]["frames"][1, 2] = 41
    with pytest.raises(CheckpointError, match="memory/frames holds numbers that are not in MultiDiscrete"):
        rows.read_state(StateReader(state))


@pytest.mark.parametrize("number", [-1, 40])
@pytest.mark.parametrize("settings", [{"frame_stack": 2}, {"previous_action": True}], ids=str)
def test_numbers_that_are_no_choice_are_refused(number: int, settings: dict[str, Any]) -> None:
    """40 would be taken for the time before the episode, or for the next number."""
    algorithm = MultiAgentAlgorithm(make_vec_env("arena", height=4), device="cpu", **SMALL, **settings)
    with pytest.raises(ConfigError, match=f"number 1 is {number}; accepted: 0 to 39"):
        algorithm.predict({"agent1": np.array([0, number])})
