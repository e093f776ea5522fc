"""The features extractor with attention over stacked frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from small_trainings import assert_goes_on_exactly, trained_by
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack
from torch import nn
from torch.nn import functional
from toy_envs import NoisyEnv, RandomEnv, SampledEnv

from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, load_policies, make_vec_env
from marl_sb3.core.extractors.attention import AttentionFeatures
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.fast.builtin import ALGORITHMS
from marl_sb3.extensions.transfer.export import export_policies

SMALL = {"embed_dim": 8, "num_layers": 2, "num_heads": 2, "feedforward_dim": 6, "positions": "learned"}
ATTENTION = {"features_extractor_class": "attention", "features_extractor_kwargs": SMALL}
FRAMES, SIZE = 4, 3
STACKED = spaces.Box(-9, 9, (FRAMES * SIZE,), np.float32)


def attention(space: spaces.Space[Any] = STACKED, frames: int = FRAMES, **changes: Any) -> AttentionFeatures:
    th.manual_seed(0)
    return AttentionFeatures(space, frames=frames, **{**SMALL, **changes})


def stacked(*frames: list[float]) -> th.Tensor:
    """One row of frames."""
    return th.tensor(frames).reshape(1, -1)


NOTHING, ONE, TWO, THREE = [0.0] * SIZE, [1.0, 0.0, 2.0], [0.5, -1.0, 0.0], [3.0, 1.0, -2.0]


# --- Frames ----------------------------------------------------------------------------------------------------------


def looks_at(extractor: AttentionFeatures, observations: th.Tensor) -> list[bool]:
    """Whether the result changes with the vector of each place; a vector that is not looked at may be anything."""
    with th.no_grad():
        before, found = extractor(observations), []
        for place in range(FRAMES):
            kept = extractor.positions[place].clone()
            extractor.positions[place] += th.arange(8.0)
            found.append(not th.equal(extractor(observations), before))
            extractor.positions[place] = kept
    return found


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([NOTHING, NOTHING, ONE, TWO], [False, False, True, True]),
        ([NOTHING, NOTHING, NOTHING, ONE], [False, False, False, True]),
        ([NOTHING, ONE, NOTHING, NOTHING], [False, True, True, True]),  # an observation of zeros is no padding
        ([ONE, TWO, THREE, ONE], [True, True, True, True]),
        ([NOTHING, NOTHING, NOTHING, NOTHING], [False, False, False, True]),
    ],
)
def test_frames_from_before_the_episode_are_not_looked_at(frames: list[list[float]], expected: list[bool]) -> None:
    for num_layers in (1, 3):
        assert looks_at(attention(num_layers=num_layers), stacked(*frames)) == expected


def test_frames_of_choices_from_before_the_episode_are_those_with_the_choice_of_none() -> None:
    """Choices of one number: 0 or 1, and 2 for none."""
    space = spaces.MultiDiscrete([3] * FRAMES)
    extractor = attention(space, frame_shape=(3,), filler=2)
    for numbers, first in (([2, 2, 2, 0], 3), ([2, 2, 0, 0], 2), ([2, 1, 0, 1], 1), ([0, 0, 0, 0], 0)):
        seen = preprocess_obs(th.tensor([numbers]), space)
        assert looks_at(extractor, seen) == [place >= first for place in range(FRAMES)]


def test_padded_frames_are_as_if_there_were_none() -> None:
    long, short = attention(), attention(spaces.Box(-9, 9, (2 * SIZE,), np.float32), frames=2)
    weights = long.state_dict()
    short.load_state_dict({**weights, "positions": weights["positions"][-2:]})
    th.testing.assert_close(long(stacked(NOTHING, NOTHING, ONE, TWO)), short(stacked(ONE, TWO)))
    assert not th.allclose(long(stacked(NOTHING, ONE, ONE, TWO)), short(stacked(ONE, TWO)))


def test_attention_is_that_of_torch() -> None:
    extractor, rows = attention(num_layers=1), th.randn(5, FRAMES, SIZE)
    rows[1:3, :2] = 0.0
    (block,) = extractor.blocks
    vectors = extractor.embed(rows) + extractor.positions
    normed = functional.layer_norm(vectors, (8,))
    query, keys, values = (
        part.reshape(5, FRAMES, 2, 4).transpose(1, 2)
        for part in (block.query(normed), *block.key_value(normed).chunk(2, dim=2))
    )
    mask = th.ones(5, 1, FRAMES, FRAMES, dtype=th.bool)
    mask[1:3, :, :, :2] = False
    seen = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask).transpose(1, 2).flatten(2)
    after = block.gates[0](vectors, functional.relu(block.merge(seen)))
    expected = block.gates[1](after, functional.relu(block.network(functional.layer_norm(after, (8,)))))[:, -1]
    th.testing.assert_close(extractor(rows.flatten(1)), expected)


def test_gates_let_little_through_at_first_and_gradients_are_finite() -> None:
    closed, observations = attention(gate_bias=30.0), th.randn(6, FRAMES * SIZE)
    observations[0] = 0.0
    newest = closed.embed(observations[:, -SIZE:]) + closed.positions[-1]
    th.testing.assert_close(closed(observations), newest)
    extractor = attention()
    extractor(observations).square().sum().backward()
    for name, parameter in extractor.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_sinusoidal_positions_are_those_of_the_distance_from_the_newest_frame() -> None:
    extractor = attention(positions="sinusoidal", embed_dim=4)
    expected = [[np.sin(3), np.cos(3), np.sin(0.03), np.cos(0.03)], [0.0, 1.0, 0.0, 1.0]]
    np.testing.assert_allclose(extractor.positions[[0, -1]], expected, atol=1e-6)
    assert "positions" not in extractor.state_dict()


LAYOUTS: dict[str, tuple[spaces.Space[Any], dict[str, Any], tuple[int, ...]]] = {
    "vectors": (spaces.Box(-1, 1, (3,)), {}, (3,)),
    "matrices": (spaces.Box(-1, 1, (2, 3)), {}, (2, 3)),
    "numbers behind": (spaces.Box(-1, 1, (2, 3)), {"previous_action": True, "time_feature": 9}, (2, 3)),
    "images": (spaces.Box(0, 255, (36, 40, 3), np.uint8), {"time_feature": 9}, (3, 36, 40)),
    "choices": (spaces.MultiDiscrete([2, 9]), {}, (13,)),
    "numbers behind choices": (spaces.Discrete(9), {"previous_action": True, "time_feature": 9}, (10,)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_frame_is_one_observation(name: str) -> None:
    space, settings, shape = LAYOUTS[name]
    env = make_vec_env(SampledEnv, n_envs=1, seed=3, observation_space=space, action_space=spaces.Discrete(2))
    spec = PolicySpec(policy_kwargs=ATTENTION, frame_stack=3, n_steps=2, batch_size=2, **settings)
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, n_steps=2, seed=1, device="cpu")
    policy, extractor = algorithm.policies["p"].policy, algorithm.policies["p"].policy.features_extractor
    numbers = 0 if not settings else 3 if "previous_action" in settings else 1
    assert extractor.features_dim == 8 + numbers
    algorithm.train_iteration()
    learner = algorithm.parts.learners["p"]
    seen = preprocess_obs(th.as_tensor(learner.buffer.observations[:2]), policy.observation_space)  # of one agent
    frames, behind = extractor._split(seen)
    assert frames.shape == (2, 3, int(np.prod(shape[:-1])), shape[-1]) if len(shape) < 3 else (2, 3, *shape)
    filling = th.zeros(frames.shape[2:])
    if not isinstance(space, spaces.Box):  # none of the choices that an observation has
        filling[0, [2, 12] if name == "choices" else [9]] = 1
    assert (frames[0, :2] == filling).all()  # the first observation of the episode
    assert (frames[1, :1] == filling).all()
    th.testing.assert_close(frames[0, 2], frames[1, 1])
    assert not th.equal(frames[1, 1], frames[1, 2])
    assert behind.shape == (2, numbers)
    if numbers:
        np.testing.assert_allclose(behind[:, -1], [1.0, 8 / 9], atol=2 / 255)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"policy 'p': the features extractor attention reads .* of 1 frames; accepted: frame_stack of at least 2"),
        ({"frame_stack": 2, "policy_kwargs": {"num_heads": 3}}, "num_heads is 3 and embed_dim 8; accepted: heads that"),
        ({"frame_stack": 2, "policy_kwargs": {"dropout": 0.1}}, "of attention has 'dropout'; accepted: embed_dim, "),
        ({"frame_stack": 2, "policy_kwargs": {"positions": "none"}}, "positions is 'none'; accepted: learned or sin"),
        ({"frame_stack": 2, "policy_kwargs": {"embed_dim": 0}}, "embed_dim is 0; accepted: an integer from 1 to 1048"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    arguments = {**SMALL, **settings.pop("policy_kwargs", {})}
    env = make_vec_env(SampledEnv, observation_space=STACKED, action_space=spaces.Discrete(2))
    settings["policy_kwargs"] = {**ATTENTION, "features_extractor_kwargs": arguments}
    with pytest.raises(ConfigError, match=message):
        MultiAgentAlgorithm(env, {"p": PolicySpec(**settings)}, n_steps=4, batch_size=4, device="cpu")


@pytest.mark.parametrize("name", ["attention", "mlp"])
def test_dict_observations_are_refused(name: str) -> None:
    mixed = spaces.Dict({"a": STACKED, "b": STACKED})
    env = make_vec_env(SampledEnv, observation_space=mixed, action_space=spaces.Discrete(2))
    spec = PolicySpec(policy="MultiInputPolicy", policy_kwargs={"features_extractor_class": name}, frame_stack=2)
    with pytest.raises(ConfigError, match=f"features extractor {name} takes one array, but .*Dict.*accepted: a space"):
        MultiAgentAlgorithm(env, {"p": spec}, n_steps=4, batch_size=4, device="cpu")


# --- Policies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_attention_and_loaded_policies_act_as_trained_ones(name: str, tmp_path: Path) -> None:
    trained = trained_by(name, STACKED, "MlpPolicy", ATTENTION, "blocks.1.gates", frame_stack=3, previous_reward=True)
    after = trained.policies["shared"].policy.state_dict()
    loaded = load_policies(trained.save(tmp_path / "saved"), device="cpu").policies["shared"]
    for key, value in after.items():
        assert th.equal(loaded.policy.state_dict()[key], value), key


def test_a_resumed_training_is_bit_for_bit_an_undisturbed_one(tmp_path: Path) -> None:
    """Agent b waits now and then and ends before a; rollouts end within episodes."""

    script = {"a": (7, "truncated"), "b": (5, "terminated")}
    settings: Any = {"frame_stack": 3, "policy_kwargs": ATTENTION, "n_epochs": 1, "batch_size": 4}

    def begun() -> MultiAgentAlgorithm:
        env = make_vec_env(NoisyEnv, n_envs=2, seed=1, plans=[[(script, {}, {"b": [1, 3]})]] * 2)
        return MultiAgentAlgorithm(env, n_steps=6, seed=3, device="cpu", **settings)

    assert_goes_on_exactly(begun, tmp_path, 12, 12)


def test_a_checkpoint_has_no_arguments_of_other_kinds() -> None:
    plain: Any = PolicySpec(policy_kwargs=ATTENTION, frame_stack=2).to_plain()
    assert PolicySpec.from_plain(StateReader(plain)).to_plain() == plain
    for name, value in {"positions": "x", "frames": 2, "num_layers": 10**9, "activation_fn": "os.system"}.items():
        plain["hyperparameters"]["policy_kwargs"]["features_extractor_kwargs"] = {**SMALL, name: value}
        with pytest.raises((CheckpointError, ConfigError), match=r"features_extractor_kwargs|os\.system"):
            PolicySpec.from_plain(StateReader(plain))


@pytest.mark.usefixtures("one_onnx_registry")
def test_exported_files_act_as_the_policy_and_stock_sb3_loads_them_beside_marl_sb3(tmp_path: Path) -> None:
    env = make_vec_env(SampledEnv, observation_space=spaces.Box(-1, 1, (2, 3)), action_space=spaces.Discrete(3))
    network = {**ATTENTION, "features_extractor_kwargs": {**SMALL, "num_layers": 1}}
    spec = PolicySpec(policy_kwargs=network, frame_stack=3, n_steps=4, batch_size=4)
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, n_steps=4, seed=1, device="cpu")
    bundle = load_policies(algorithm.save(tmp_path / "saved"), device="cpu")
    (onnx,) = export_policies(bundle, "onnx", tmp_path)
    assert onnx.difference is not None
    assert onnx.difference < 1e-5
    padded = np.random.default_rng(0).uniform(-1, 1, (5, 2, 9)).astype(np.float32)
    padded[:3, :, :3] = 0.0  # frames that come from before the episode
    padded[1, :, :6] = 0.0
    session = onnxruntime.InferenceSession(onnx.path)
    values = session.run(["values"], {session.get_inputs()[0].name: padded})[0]
    with th.no_grad():
        expected = bundle.policies["p"].policy.predict_values(th.as_tensor(padded))
    np.testing.assert_allclose(values, expected.flatten(), atol=1e-5)
    (zipped,) = export_policies(bundle, "sb3", tmp_path)
    loaded = stable_baselines3.PPO.load(zipped.path, device="cpu")
    np.testing.assert_array_equal(
        loaded.predict(padded, deterministic=True)[0], bundle.policies["p"].predict(padded, deterministic=True)[0]
    )


def test_the_names_of_rllib_make_the_network_and_its_frames() -> None:
    env = make_vec_env(SampledEnv, observation_space=STACKED, action_space=spaces.Discrete(2))
    memory = {"attention_memory_inference": 2, "attention_memory_training": 2}
    model = {"use_attention": True, "attention_dim": 12, "fcnet_hiddens": [5], "fcnet_activation": "relu", **memory}
    algorithm = MultiAgentAlgorithm(env, n_steps=4, batch_size=4, device="cpu", model=model)
    policy = algorithm.policies["shared"].policy
    extractor, size = policy.features_extractor, STACKED.shape[0]
    assert [type(layer) for layer in extractor.embed] == [nn.Linear, nn.ReLU, nn.Linear]
    assert [layer.weight.shape for layer in extractor.embed[::2]] == [(5, size), (12, 5)]
    assert extractor.positions.shape == (3, 12)
    assert extractor.blocks[0].query.weight.shape == (32, 12)
    assert policy.action_net.in_features == policy.value_net.in_features == 12


def test_stock_sb3_trains_it_on_its_own_frames() -> None:
    env = VecFrameStack(DummyVecEnv([lambda: RandomEnv(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))]), 4)
    env.seed(0)
    kwargs = {"features_extractor_class": AttentionFeatures, "features_extractor_kwargs": {**SMALL, "frames": 4}}
    stable_baselines3.PPO("MlpPolicy", env, policy_kwargs=kwargs, n_steps=8, batch_size=8, device="cpu").learn(8)


@pytest.mark.parametrize(
    ("side", "low", "high"),
    [("attention", 0.75, 1.0), pytest.param("mlp", 0.35, 0.65, marks=pytest.mark.proof)],  # the task needs it
)
def test_attention_remembers_a_cue_and_a_network_without_memory_guesses(
    side: str, low: float, high: float, benchmark: Any
) -> None:
    assert low <= benchmark("memory_task").train(side, delay=2, timesteps=2048, seed=0)[0] <= high
