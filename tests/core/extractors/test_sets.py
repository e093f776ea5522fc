"""Networks for sets: they depend neither on the order of entities nor on rows without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from toy_envs import SampledEnv

from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, load_policies, make_vec_env
from marl_sb3.core.extractors.sets import DeepSetsFeatures, SetAttentionFeatures
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.transfer.export import export_policies

FRIENDS, FOES = 4, 3
SEEN = spaces.Dict(
    {
        "own": spaces.Box(-1, 1, (2,), np.float32),
        "friends": spaces.Box(-1, 1, (FRIENDS, 3), np.float32),
        "friends_mask": spaces.MultiBinary(FRIENDS),
        "foes": spaces.Box(-1, 1, (FOES, 2), np.float32),
        "mode": spaces.Discrete(3),
    }
)
CLASSES = {"deep_sets": DeepSetsFeatures, "set_attention": SetAttentionFeatures}
SMALL: dict[str, dict[str, Any]] = {
    "deep_sets": {"net_arch": [6, 5]},
    "set_attention": {"embed_dim": 8, "num_layers": 2, "num_heads": 2, "feedforward_dim": 6, "net_arch": [7]},
}
EACH = pytest.mark.parametrize("name", CLASSES)
POOLED = pytest.mark.parametrize("pooling", ["mean", "max", "sum"])


def extractor(name: str, space: spaces.Space[Any] = SEEN, **changes: Any) -> Any:
    th.manual_seed(0)
    return CLASSES[name](space, **{**SMALL[name], **changes})


def observed(rows: int = 6) -> dict[str, th.Tensor]:
    """Observations as SB3 prepares them; none of their numbers is 0, but some friends and foes are not there."""
    generator = th.Generator().manual_seed(1)
    shapes = {"own": (2,), "friends": (FRIENDS, 3), "foes": (FOES, 2), "mode": (3,)}
    seen = {key: th.rand((rows, *shape), generator=generator) + 0.1 for key, shape in shapes.items()}
    seen["friends_mask"] = (th.rand((rows, FRIENDS), generator=generator) > 0.4).float()
    seen["foes"] *= th.rand((rows, FOES, 1), generator=generator) > 0.4
    return seen


# --- Sets ------------------------------------------------------------------------------------------------------------


@EACH
@POOLED
def test_the_order_of_entities_changes_nothing(name: str, pooling: str) -> None:
    features, seen = extractor(name, pooling=pooling), observed()
    before = features(seen)
    for seed in range(20):
        generator = th.Generator().manual_seed(seed)
        friends, foes = (th.randperm(number, generator=generator) for number in (FRIENDS, FOES))
        shuffled = {
            **seen,
            "friends": seen["friends"][:, friends],
            "friends_mask": seen["friends_mask"][:, friends],
            "foes": seen["foes"][:, foes],
        }
        th.testing.assert_close(features(shuffled), before, atol=1e-5, rtol=1e-5)
    assert not th.allclose(features({**seen, "friends": seen["friends"].flip(1)}), before)  # without the mask


@EACH
@POOLED
def test_absent_entities_are_as_if_there_were_no_rows(name: str, pooling: str) -> None:
    features, seen = extractor(name, pooling=pooling), observed()
    seen["friends_mask"][:, -2:] = 0.0
    before = features(seen)
    seen["friends"][:, -2:] = th.tensor([[7.0, -9.0, th.nan], [th.inf, 3.0, 2.0]])
    th.testing.assert_close(features(seen), before)

    fewer = spaces.Dict(
        {
            **SEEN.spaces,
            "friends": spaces.Box(-1, 1, (2, 3), np.float32),
            "friends_mask": spaces.Box(0, 1, (2,), np.float32),
            "foes": spaces.Box(-1, 1, (FOES + 2, 2), np.float32),
        }
    )
    short = extractor(name, fewer, pooling=pooling)
    short.load_state_dict(features.state_dict())
    cut = {key: part[:, :2] if key.startswith("friends") else part for key, part in seen.items()}
    cut["foes"] = th.cat([th.zeros(6, 2, 2), seen["foes"]], dim=1)
    th.testing.assert_close(short(cut), before)


@EACH
@POOLED
def test_without_any_entity_the_pooled_numbers_are_zeros_and_gradients_are_finite(name: str, pooling: str) -> None:
    features, seen = extractor(name, pooling=pooling, pooled_arch=[]), observed()
    seen["friends_mask"][0] = 0.0
    seen["foes"][0] = 0.0
    found = features(seen)
    assert (found[0, :-5] == 0).all()
    th.testing.assert_close(found[:, -5:], th.cat([seen["mode"], seen["own"]], dim=1))  # as the Dict has them
    found.square().sum().backward()
    for key, parameter in features.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


def test_deep_sets_by_hand() -> None:
    """One layer that doubles; rows 0 and 2 are there."""
    space, seen = spaces.Box(-9, 9, (3, 1)), th.tensor([[[1.0], [0.0], [3.0]]])
    for pooling, expected in {"mean": 4.0, "max": 6.0, "sum": 8.0}.items():
        features = DeepSetsFeatures(space, net_arch=[1], pooled_arch=[], pooling=pooling)
        features.load_state_dict({"embeddings.0.0.weight": th.tensor([[2.0]]), "embeddings.0.0.bias": th.zeros(1)})
        assert features(seen).tolist() == [[expected]]


def test_attention_is_that_of_torch() -> None:
    features = extractor("set_attention", spaces.Box(-1, 1, (5, 3)), num_layers=1, pooled_arch=[])
    seen = th.rand(4, 5, 3) + 0.1
    seen[:2, 3:] = 0.0
    (block,), vectors, absent = features.blocks, features.embeddings[0](seen), (seen == 0).all(dim=2)
    torchs = th.nn.MultiheadAttention(8, 2, batch_first=True)
    weights = block.query_key_value.weight, block.query_key_value.bias, block.merge.weight, block.merge.bias
    names = "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"
    torchs.load_state_dict(dict(zip(names, weights, strict=True)))
    related = block.norms[0](vectors + torchs(vectors, vectors, vectors, key_padding_mask=absent)[0])
    related = block.norms[1](related + block.network(related))
    expected = th.stack([own[there].mean(dim=0) for own, there in zip(related, ~absent, strict=True)])
    th.testing.assert_close(features(seen), expected)


@pytest.mark.parametrize(("name", "sees"), [("deep_sets", False), ("set_attention", True)])
def test_entities_see_each_other_in_attention_alone(name: str, sees: bool) -> None:
    """The change of one foe, which is pooled apart, reaches the friends or not."""
    features, seen = extractor(name, pooled_arch=[]), observed()
    seen["friends_mask"][:] = 1.0
    seen["foes"][:] = 0.5
    size = features.features_dim - 5
    before = features(seen)[:, :size]
    seen["foes"][:, 0] = 0.9
    after = features(seen)[:, :size]
    foes, friends = slice(0, size // 2), slice(size // 2, size)  # as the Dict has them
    assert not th.allclose(after[:, foes], before[:, foes])
    assert th.allclose(after[:, friends], before[:, friends]) is not sees


# --- Policies --------------------------------------------------------------------------------------------------------


def trained(name: str, space: spaces.Space[Any], **settings: Any) -> MultiAgentAlgorithm:
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy"
    kwargs = {"features_extractor_class": name, "features_extractor_kwargs": {**SMALL[name], "pooling": "max"}}
    env = make_vec_env(SampledEnv, observation_space=space, action_space=spaces.Discrete(3), seed=1)
    settings = {"n_steps": 4, "batch_size": 4, "policy": policy, "policy_kwargs": kwargs, **settings}
    algorithm = MultiAgentAlgorithm(env, {"p": PolicySpec(**settings)}, n_steps=4, seed=1, device="cpu")
    algorithm.train_iteration()
    return algorithm


@EACH
@pytest.mark.parametrize(
    "settings",
    [{"algorithm": "recurrent_ppo", "policy": "MultiInputLstmPolicy"}, {"algorithm": "dqn", "learning_starts": 0}],
)
def test_loaded_policies_act_as_trained_ones(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    if "learning_starts" in settings:
        settings = {**settings, "n_steps": 1, "train_freq": 2, "batch_size": 2, "buffer_size": 9}
        settings |= {"normalize_observations": True, "normalize_keys": ["own"]}
    algorithm = trained(name, SEEN, **settings)
    loaded = load_policies(algorithm.save(tmp_path / "saved"), device="cpu").policies["p"].policy
    expected = algorithm.policies["p"].policy.state_dict()
    assert any("embeddings" in key for key in expected)
    for key, value in loaded.state_dict().items():
        assert th.equal(value, expected[key]), key


@pytest.mark.usefixtures("one_onnx_registry")
def test_exported_files_act_as_the_policy(tmp_path: Path) -> None:
    bundle = load_policies(trained("set_attention", SEEN).save(tmp_path / "saved"), device="cpu")
    (onnx,) = export_policies(bundle, "onnx", tmp_path)
    assert onnx.difference is not None
    assert onnx.difference < 1e-5
    SEEN.seed(2)
    seen = [SEEN.sample() for _ in range(5)]
    seen[0]["friends_mask"][:] = 0
    seen[1]["foes"][:] = 0.0
    batch = {key: np.stack([each[key] for each in seen]) for key in SEEN}
    session = onnxruntime.InferenceSession(onnx.path)
    inputs = {each.name: batch[each.name.rpartition(".")[2]] for each in session.get_inputs()}
    policy = bundle.policies["p"].policy
    with th.no_grad():
        expected = policy.predict_values(policy.obs_to_tensor(batch)[0]).flatten()
    np.testing.assert_allclose(session.run(["values"], inputs)[0], expected, atol=1e-5)
    (zipped,) = export_policies(bundle, "sb3", tmp_path)
    loaded = stable_baselines3.PPO.load(zipped.path, device="cpu")
    found = (each.predict(batch, deterministic=True)[0] for each in (loaded, bundle.policies["p"]))
    np.testing.assert_array_equal(*found)


@EACH
def test_frames_of_entities_are_stacked_and_numbers_appended_to_what_is_pooled(name: str) -> None:
    """The entity in row 0 was there in the frame before; row 1 is absent in both."""
    space = spaces.Box(-1, 1, (3, 2), np.float32)
    policy = trained(name, space, frame_stack=2, time_feature=4, agent_indicator=True).policies["p"].policy
    features = policy.features_extractor
    assert features.layers[0].in_features == SMALL[name].get("embed_dim", 5) + 3
    rows = th.tensor([[0.5, 0.2, 0.0, 0.0], [0.0] * 4, [0.1, 0.3, 0.4, 0.5]])
    seen = th.cat([rows.flatten(), th.tensor([1.0, 0.0, 1.0])])
    shuffled = th.cat([rows[[2, 0, 1]].flatten(), seen[-3:]])
    found = features(th.stack([seen, shuffled, seen + th.tensor([*[0.0] * 12, -1.0, 0.0, 0.0])]))
    th.testing.assert_close(found[0], found[1])
    assert not th.allclose(found[0], found[2])


def test_a_checkpoint_has_no_arguments_of_other_kinds() -> None:
    kwargs = {"features_extractor_class": "set_attention", "features_extractor_kwargs": {"pooling": "sum"}}
    plain: Any = PolicySpec(policy_kwargs=kwargs).to_plain()
    assert PolicySpec.from_plain(StateReader(plain)).to_plain() == plain
    for key, value in {"pooling": "min", "pooled_arch": [10**9], "shape": [1, 1], "normalized": []}.items():
        plain["hyperparameters"]["policy_kwargs"]["features_extractor_kwargs"] = {key: value}
        with pytest.raises((CheckpointError, ConfigError), match="features_extractor_kwargs"):
            PolicySpec.from_plain(StateReader(plain))


MATRIX = spaces.Box(-1, 1, (3, 2), np.float32)


@pytest.mark.parametrize(
    ("space", "settings", "message"),
    [
        (
            spaces.Box(-1, 1, (3,)),
            {},
            r"policy 'p': the features extractor deep_sets reads .*; accepted: a Box of \(ent",
        ),
        (
            spaces.Dict({"a": MATRIX, "a_mask": spaces.Box(0, 1, (2,))}),
            {},
            r"the part 'a_mask', which says what entities of 'a' are there, is .*; accepted: .* of shape \(3,\)",
        ),
        (
            spaces.Dict({"a": MATRIX, "b": spaces.Box(0, 255, (36, 36, 3), np.uint8)}),
            {},
            "the part 'b' is an image; accepted: matrices",
        ),
        (MATRIX, {"normalize_observations": True}, "of zeros are absent; accepted: normalize_observations=false"),
        (
            spaces.Dict({"a": MATRIX, "b": spaces.Box(0, 1, (2,))}),
            {"normalize_observations": True, "normalize_keys": ["a", "b"]},
            "of zeros are absent; accepted: normalize_keys without 'a'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(space: spaces.Space[Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trained("deep_sets", space, **settings)


@pytest.mark.parametrize(
    ("side", "timesteps", "low", "high"),
    [
        ("deep_sets", 4096, 0.8, 1.0),
        ("set_attention", 3072, 0.8, 1.0),
        pytest.param("mlp", 4096, 0.4, 0.7, marks=pytest.mark.proof),  # the task needs them
    ],
)
def test_policies_learn_where_the_nearest_entity_is(
    side: str, timesteps: int, low: float, high: float, benchmark: Any
) -> None:
    assert low <= benchmark("nearest_task").train(side, most=5, timesteps=timesteps, seed=0) <= high
