"""Networks by names: those of the table, and classes of a user's own, which files only name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from small_trainings import trained_by
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from toy_envs import SampledEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, load_policies, make_vec_env, register_network
from marl_sb3.core import policies as networks
from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.core.config.networks import CLASSES
from marl_sb3.core.extractors.images import ImageFeatures
from marl_sb3.core.policies import resolve_policy_kwargs
from marl_sb3.extensions.fast.builtin import ALGORITHMS
from marl_sb3.train import main as train

NUMBERS = spaces.Box(-1, 1, (3,))


class Doubled(BaseFeaturesExtractor):
    """Twice what is observed, `repeats` times."""

    def __init__(self, observation_space: spaces.Box, repeats: int = 1) -> None:
        super().__init__(observation_space, repeats * int(get_flattened_obs_dim(observation_space)))
        self.repeats = repeats
        self.layer = th.nn.Linear(1, 1)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return 2 * th.cat([observations.flatten(1)] * self.repeats, dim=1)


class OwnPolicy(ActorCriticPolicy):
    """A policy of a user's own, with an argument of its own."""

    def __init__(self, *args: Any, depth: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, net_arch=[4] * depth, **kwargs)


class Cosine(th.nn.Module):
    """An activation function of a user's own."""

    def forward(self, inputs: th.Tensor) -> th.Tensor:
        return th.cos(inputs)


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes that are registered for the time of a test."""
    monkeypatch.setattr(networks, "_registered", {use: {} for use in networks._registered})
    for name, cls in {"doubled": Doubled, "own": OwnPolicy, "cosine": Cosine}.items():
        register_network(name, cls)


@pytest.mark.parametrize("use", CLASSES)
def test_every_name_is_of_a_class(use: str) -> None:
    for name in CLASSES[use]:
        found = resolve_policy_kwargs({use: name})[use]
        assert issubclass(found, networks._BASES[use])


def test_classes_and_entries_of_a_users_policy_are_kept() -> None:
    given = {"activation_fn": Cosine, "features_extractor_class": Doubled, "depth": 3, "anything": [object]}
    assert resolve_policy_kwargs(given) == given


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        (
            "activation_fn",
            "softmax",
            "activation_fn is 'softmax'; accepted: tanh, .*, cosine, or a name given",
        ),
        ("optimizer_class", "lbfgs", "optimizer_class is 'lbfgs'; accepted: adam, adamw"),
        ("features_extractor_class", "cnn", "is 'cnn'; accepted: FlattenExtractor, NatureCNN, CombinedExtr.*, doubled"),
        (
            "share_features_extractor",
            "maybe",
            "share_features_extractor is 'maybe'; accepted: true or false",
        ),
        ("lstm_hidden_size", 0, "lstm_hidden_size is 0; accepted: an integer of at least 1"),
        ("optimizer_kwargs", 3, "optimizer_kwargs is 3; accepted: a mapping of names to values, or null"),
        ("n_critics", 0.5, r"n_critics is 0\.5; accepted: an integer from 1 to 1000"),
    ],
)
def test_errors_name_the_file_and_the_entry(
    entry: str, value: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        PolicySpec(policy_kwargs={entry: value})
    assert caught.value.key == f"policy_kwargs.{entry}"
    path = tmp_path / "h.yml"
    path.write_text(f"arena: {{n_steps: 4, policy_kwargs: {{net_arch: [4], {entry}: {value}}}}}")
    arguments = ["arena", "--hparams", str(path), "--run-dir", str(tmp_path / "run")]
    assert train(arguments) == 2
    assert f"{path}, arena.policy_kwargs: " in capsys.readouterr().err
    arguments = ["arena", "--set", "policy_kwargs.net_arch=[4]", "--set", f"policy_kwargs.{entry}={value}"]
    assert train(arguments) == 2
    assert f"--set policy_kwargs.{entry}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "cls", "message"),
    [
        ("x", dict, "network class 'x' is <class 'dict'>; accepted: a subclass of BasePolicy, Base"),
        ("x", Doubled(NUMBERS), "network class 'x' is Doubled"),
        ("", Doubled, "the name of a network class is ''; accepted: a string"),
        ("NatureCNN", Doubled, "the name 'NatureCNN' is built in for features_extractor_class"),
        ("MlpPolicy", OwnPolicy, "the name 'MlpPolicy' is built in for policy"),
    ],
)
def test_what_cannot_be_registered_is_refused(name: str, cls: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register_network(name, cls)


OWN = {
    "features_extractor_class": "doubled",
    "features_extractor_kwargs": {"repeats": 2},
    "share_features_extractor": False,
    "activation_fn": "cosine",
    "optimizer_class": "rmsprop",
    "optimizer_kwargs": {"alpha": 0.9, "eps": 1e-5},
    "net_arch": {"pi": [4], "vf": [5]},
}
SHORT = {"n_steps": 4, "batch_size": 4, "n_epochs": 1}


def test_runs_and_checkpoints_name_classes_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SHORT, "policy_kwargs": OWN, "agent2.policy": "own", "agent2.policy_kwargs": {"depth": 2}}
    run = marl_sb3.train(
        "arena", policies="per_agent", n_envs=1, timesteps=4, seed=1, settings=settings, run_dir=tmp_path / "run"
    )
    first, second = (run.algorithm.policies[agent].policy for agent in ("agent1", "agent2"))
    assert isinstance(first.features_extractor, Doubled)
    assert first.pi_features_extractor is not first.vf_features_extractor
    assert isinstance(first.mlp_extractor.policy_net[1], Cosine)
    assert isinstance(first.optimizer, th.optim.RMSprop)
    assert first.optimizer.param_groups[0]["alpha"] == 0.9
    assert isinstance(second, OwnPolicy)
    assert "features_extractor_class: doubled" in (run.folder / "config.yaml").read_text()
    observations = {"agent1": [0, 9], "agent2": [9, 0]}
    expected = run.algorithm.predict(observations, deterministic=True)
    for loaded in (marl_sb3.load_run(run.folder, "latest").algorithm, load_policies(run.folder, "latest")):
        assert loaded.predict(observations, deterministic=True) == expected
    resumed = marl_sb3.train(resume=run.folder, timesteps=4)
    assert resumed.algorithm.num_timesteps == 8
    monkeypatch.setattr(networks, "_registered", {use: {} for use in networks._registered})
    with pytest.raises(ConfigError, match=r"features_extractor_class is 'doubled'; accepted: .*register_network"):
        marl_sb3.load_run(run.folder)
    with pytest.raises(marl_sb3.errors.CheckpointError, match=r"'doubled'.*register_network"):
        load_policies(run.folder)


@pytest.mark.parametrize(
    ("name", "net_arch", "accepted"),
    [
        ("ppo", {"pi": [4], "qf": [4]}, r"a list of layer widths, or {pi: \[64, 64\], vf: \[64, 64\]}"),
        ("sac", {"pi": [4], "vf": [4]}, r"a list of layer widths, or {pi: \[64, 64\], qf: \[64, 64\]}"),
        ("td3", {"pi": [4]}, r"{pi: \[64, 64\], qf: \[64, 64\]}"),
        ("dqn", {"pi": [4]}, r"a list of layer widths$"),
    ],
)
def test_layers_that_an_algorithm_does_not_have_are_refused(name: str, net_arch: Any, accepted: str) -> None:
    spec = PolicySpec(algorithm_info(name).algorithm_class, policy_kwargs={"net_arch": net_arch})
    env = make_vec_env("Pendulum-v1" if name in ("sac", "td3") else "CartPole-v1")
    with pytest.raises(ConfigError, match=f"net_arch of {name.upper()} is .*; accepted: .*{accepted}"):
        MultiAgentAlgorithm(env, {"shared": spec}, device="cpu")


IMAGES = spaces.Box(0, 255, (1, 36, 36), np.uint8)
TINY_CNN = {"features_extractor_kwargs": {"features_dim": 16}, "net_arch": [8]}
WITH_CNN = [
    name for name in ALGORITHMS if any("Cnn" in own for own in algorithm_info(name).algorithm_class.policy_aliases)
]


def image(*shape: int, kind: Any = np.uint8, high: int = 255) -> spaces.Box:
    return spaces.Box(0, high, shape, kind)


GRID = image(7, 7, 3)
WITH_GRID = spaces.Dict({"grid": GRID, "direction": spaces.Discrete(4)})
# What is observed -> the algorithm, its policy by default, and that of its features extractor
FITTING: dict[str, tuple[str, spaces.Space[Any], str, str]] = {
    "numbers": ("ppo", NUMBERS, "MlpPolicy", "FlattenExtractor"),
    "a matrix": ("ppo", spaces.Box(0, 1, (8, 8)), "MlpPolicy", "FlattenExtractor"),
    "a board of codes": ("ppo", spaces.Box(-1, 1, (6, 7, 2), np.int8), "MlpPolicy", "FlattenExtractor"),
    "a few cells": ("ppo", image(3, 3, 3), "MlpPolicy", "FlattenExtractor"),
    "images": ("ppo", image(36, 40, 3), "CnnPolicy", "NatureCNN"),
    "frames": ("ppo", image(4, 36, 36), "CnnPolicy", "NatureCNN"),
    "gray": ("dqn", image(36, 36), "CnnPolicy", "ImageFeatures"),
    "frames of images": ("ppo", image(2, 36, 40, 3), "CnnPolicy", "ImageFeatures"),
    "a grid": ("a2c", GRID, "CnnPolicy", "ImageFeatures"),
    "a grid with memory": ("recurrent_ppo", GRID, "CnnLstmPolicy", "ImageFeatures"),
    "a grid of truth values": ("ppo", image(10, 10, 10, kind=np.bool_, high=1), "CnnPolicy", "ImageFeatures"),
    "maps": ("ppo", image(2, 9, 9, kind=np.float32), "CnnPolicy", "ImageFeatures"),
    "a grid without convolutions": ("crossq", GRID, "MlpPolicy", "FlattenExtractor"),
    "parts": ("ppo", spaces.Dict({"a": NUMBERS, "b": image(36, 36, 3)}), "MultiInputPolicy", "CombinedExtractor"),
    "a grid among parts": ("ppo", WITH_GRID, "MultiInputPolicy", "ImageFeatures"),
}


@pytest.mark.parametrize("name", FITTING)
def test_by_default_networks_fit_what_is_observed(name: str, tmp_path: Path) -> None:
    algo, observed, policy, extractor = FITTING[name]
    actions = spaces.Box(-1, 1, (1,)) if algo == "crossq" else spaces.Discrete(3)
    settings = {"dqn": {"buffer_size": 9}, "crossq": {"buffer_size": 9}, "a2c": {}}.get(algo, {"batch_size": 4})
    env = make_vec_env(SampledEnv, observation_space=observed, action_space=actions)
    made = MultiAgentAlgorithm(env, {"p": PolicySpec(algo, **settings)}, n_steps=4, seed=1, device="cpu")
    made.learn(4)
    network: Any = made.policies["p"].policy
    assert made.specs["p"].policy == policy
    assert type(getattr(network, "actor", getattr(network, "q_net", network)).features_extractor).__name__ == extractor
    seen, loaded = {agent: observed.sample() for agent in env.agents}, load_policies(made.save(tmp_path / "saved"))
    assert loaded.predict(seen, deterministic=True) == made.predict(seen, deterministic=True)


PICTURE = np.random.default_rng(0).integers(0, 256, (3, 6, 8)).astype(np.uint8)  # channels, height, width
# The space as SB3 prepares it, the picture in it, and what `arguments_for` says of it
FORMS: dict[str, tuple[spaces.Box, Any, dict[str, Any]]] = {
    "channels last": (image(6, 8, 3, kind=np.float32), PICTURE.transpose(1, 2, 0) / 255, {}),
    "frames of gray images": (image(3, 6, 8, 1), PICTURE[..., None], {}),
    "frames side by side": (image(6, 24), np.concatenate(PICTURE, axis=1), {"frames": 3}),
    "maps side by side": (image(1, 6, 24, kind=np.float32), np.concatenate(PICTURE, axis=1)[None] / 255, {"frames": 3}),
    "transposed": (image(8, 3, 6), PICTURE.transpose(2, 0, 1) / 255, {"shapes": {"": (3, 6, 8)}}),
}


@pytest.mark.parametrize("name", FORMS)
def test_images_are_read_alike_wherever_their_axes_are(name: str) -> None:
    space, picture, arguments = FORMS[name]
    known, other = ImageFeatures(image(3, 6, 8)), ImageFeatures(space, **arguments)
    other.load_state_dict(known.state_dict())
    one, another = (th.as_tensor(np.array(each)[None], dtype=th.float32) for each in (PICTURE / 255, picture))
    np.testing.assert_allclose(known(one).detach(), other(another).detach(), rtol=1e-5)


@pytest.mark.parametrize("name", WITH_CNN)
def test_images_go_through_convolutions_in_every_algorithm_that_has_them(name: str) -> None:
    """All but CrossQ, for which sb3-contrib has none."""
    trained_by(name, IMAGES, "CnnPolicy", TINY_CNN, "features_extractor.cnn.0")
    trained_by(name, GRID, "auto", TINY_CNN, "features_extractor.networks.0.0")
