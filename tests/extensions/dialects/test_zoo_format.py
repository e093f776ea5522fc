"""Files of rl-baselines3-zoo's format: what is read, what is not supported yet, and that nothing is evaluated."""

from __future__ import annotations

import logging
import runpy
from pathlib import Path

import pytest
from stable_baselines3 import TD3

import marl_sb3
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.dialects.zoo import parse_literal
from marl_sb3.runs.files import to_yaml
from marl_sb3.runs.settings import load_config

# The constructs of the zoo's files, in entries of our own.
ZOO = """
default:
  n_timesteps: !!float 2e2
  policy: 'MlpPolicy'
atari:
  env_wrapper:
    - stable_baselines3.common.atari_wrappers.AtariWrapper
  frame_stack: 4
  policy: 'CnnPolicy'
Pendulum-v1: &pendulum
  normalize: false
  frame_stack: 1
  env_wrapper: null
  vec_env_wrapper: []
  callback: []
  n_envs: 2
  n_timesteps: !!float 16
  policy: 'MlpPolicy'
  n_steps: !!float 8
  batch_size: 259
  n_epochs: 2
  learning_rate: !!float 1e-3
  clip_range: lin_0.2
  use_sde: True
  sde_sample_freq: 4
  policy_kwargs: "dict(log_std_init=-2, ortho_init=False,
                       activation_fn=nn.ReLU,
                       net_arch=dict(pi=[8], vf=[8, 4]),
                       )"
CartPole-v1:
  <<: *pendulum
  normalize: "{'norm_obs': False, 'norm_reward': True}"
  frame_stack: 2
"""


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    path = tmp_path / "ppo.yml"
    path.write_text(ZOO, encoding="utf-8")
    return path


def test_an_entry_of_the_zoo_trains_as_written(zoo: Path, in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = marl_sb3.train("Pendulum-v1", hparams=zoo, seed=1)
    config, policy = run.config, run.algorithm.policies["shared"]
    assert (config.n_timesteps, config.hyperparameters["n_steps"], config.hyperparameters["batch_size"]) == (16, 8, 259)
    assert all(type(value) is int for value in (config.n_timesteps, config.hyperparameters["n_steps"]))
    assert policy.policy.net_arch == {"pi": [8], "vf": [8, 4]}
    assert policy.policy.activation_fn.__name__ == "ReLU"
    assert policy.use_sde
    assert run.result is not None
    expected = (
        "policy 'shared': batch_size is 259, larger than its rollout of 8 steps x 2 envs x 1 agent = 16 agent steps: "
        "every epoch is one minibatch of 16"
    )
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [expected]
    written = load_config(None, hparams=run.folder / "config.yaml")
    assert written == config
    assert written.hyperparameters["policy_kwargs"]["activation_fn"] == "relu"


def test_the_section_default_is_for_envs_without_one_of_their_own(
    zoo: Path, in_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config("Pendulum-v0", hparams=zoo)
    assert config.n_timesteps == 200
    said = f"{zoo} has no settings for env 'Pendulum-v0': those of its section 'default' are used; did you mean "
    assert list(config.notes) == [f"{said}Pendulum-v1?"]
    assert "default" not in to_yaml(config)
    marl_sb3.train("arena", hparams=zoo, n_envs=1, timesteps=8, settings={"n_steps": 8, "batch_size": 8})
    assert f"{zoo} has no settings for env 'arena': those of its section 'default' are used" in caplog.text


def test_sections_are_not_envs(tmp_path: Path) -> None:
    path = tmp_path / "h.yml"
    path.write_text("default: {n_envs: 3}\nthe-env: {n_envs: 2}\n")
    assert load_config(None, hparams=path).env == "the-env"
    path.write_text("default: {n_envs: 3}\n")  # the config.yaml of an env that is called so
    assert load_config(None, hparams=path).env == "default"


NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}


@pytest.mark.parametrize(
    ("entry", "settings", "processing"),
    [
        ({"normalize": True}, {}, NORMALIZED),
        ({"normalize": "{'norm_obs': False, 'norm_reward': True}"}, {}, {"normalize_rewards": True}),
        (
            {"normalize": "dict(norm_reward=False, clip_obs=5.)"},
            {},
            {"normalize_observations": True, "clip_observations": 5.0},
        ),
        ({"normalize": {"clip_reward": 3, "training": True}}, {}, {**NORMALIZED, "clip_normalized_rewards": 3}),
        ({"normalize": True, "normalize_kwargs": {"epsilon": 0.1}}, {}, {**NORMALIZED, "normalize_epsilon": 0.1}),
        ({"normalize": True, "frame_stack": 2}, {"normalize": False}, {"frame_stack": 2}),
        ({"normalize": {}, "frame_stack": None}, {}, {}),
        ({"normalize": True}, {"normalize_rewards": False}, {"normalize_observations": True}),
    ],
)  # fmt: skip
def test_processing_means_what_it_means_in_the_zoo(entry: dict, settings: dict, processing: dict) -> None:
    config = load_config("CartPole-v1", hparams={"CartPole-v1": entry}, settings=settings)
    assert config.processing.changed() == processing


def test_action_noise_has_the_two_keys_of_the_zoo() -> None:
    entry = {"noise_type": "ornstein-uhlenbeck", "noise_std": 0.5}
    settings = {"p.noise_type": "normal", "p.noise_std": 0.1, "env.noise_std": 3}
    config = load_config("e", "td3", hparams={"e": entry}, settings=settings)
    assert config.hyperparameters == {"action_noise": {"ornstein_uhlenbeck": 0.5}}
    assert (config.own_settings["p"], config.env_kwargs) == ({"action_noise": {"normal": 0.1}}, {"noise_std": 3})
    assert PolicySpec(TD3, action_noise={"normal": 0.1}).hyperparameters == {"action_noise": {"normal": 0.1}}


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("Pendulum-v1", {"noise_std": 0.1}, "--set noise_std: noise_std is given without noise_type; accepted: both"),
        (
            "Pendulum-v1",
            {"noise_type": "pink", "noise_std": 1},
            "noise_type is 'pink', noise_std is 1; accepted:",
        ),
        ("Pendulum-v1", {"noise_type": "normal"}, "noise_type is 'normal', noise_std is None; accepted: normal"),
        (
            "Pendulum-v1",
            {"noise_type": "normal", "noise_std": 1, "action_noise": None},
            "noise_type and action_noise are both given",
        ),
        ("Pendulum-v1", {"callback": "x.Y"}, "pass marl_sb3.train(callback=[...])"),
        ("Pendulum-v1", {"vec_env_wrapper": "x.Y"}, "vec_env_wrapper is 'x.Y' (wrappers around the vectorized env"),
        (
            "Pendulum-v1",
            {"normalize": {"clip": 3}},
            "--set normalize: normalize has clip=3; accepted: true, false",
        ),
        ("Pendulum-v1", {"normalize": {"training": False}}, "normalize has training=False; accepted"),
        ("Pendulum-v1", {"normalize": {"gamma": 0.9}}, "rewards are discounted by the policy's gamma"),
        ("Pendulum-v1", {"normalize": 3}, "normalize is 3; accepted: true, false or a mapping with norm_obs"),
    ],
)
def test_what_is_not_supported_is_named(zoo: Path, env: str, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(env, hparams=zoo, settings=settings)
    assert message in str(caught.value)
    assert "did you mean" not in str(caught.value)


# Networks in a text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("dict()", {}),
        ("dict(a=1, b=-2.5, c=None, d='x', e=True)", {"a": 1, "b": -2.5, "c": None, "d": "x", "e": True}),
        ("{'net_arch': [64, (32, +1)]}", {"net_arch": [64, [32, 1]]}),
        ("dict(a=nn.Tanh, b=th.nn.LeakyReLU, c=torch.nn.SiLU)", {"a": "tanh", "b": "leaky_relu", "c": "silu"}),
        ("dict(a=nn.ELU, b=nn.GELU, c=nn.ReLU)", {"a": "elu", "b": "gelu", "c": "relu"}),
        (
            "dict(optimizer_class=th.optim.RMSprop, a=RMSpropTFLike, b=NatureCNN)",
            {"optimizer_class": "rmsprop", "a": "rmsprop_tf_like", "b": "NatureCNN"},
        ),
        ("dict(a='\\d')", {"a": "\\d"}),  # of which the compiler would warn
    ],
)
def test_a_text_of_literals_is_read(text: str, value: dict) -> None:
    assert parse_literal("policy_kwargs", text) == value


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("dict(a=__import__('os').system('true'))", '''"__import__('os').system('true')"'''),
        ("dict(a=open('/etc/passwd'))", '''"open('/etc/passwd')"'''),
        ("dict(optimizer_class=th.optim.LBFGS)", "'th.optim.LBFGS'"),
        ("dict(optimizer_class=LBFGS)", "'LBFGS'"),
        ("dict(a=nn.Softmax)", "'nn.Softmax'"),
        ("dict(a=x.nn.ReLU)", "'x.nn.ReLU'"),
        ("dict(a=[y for y in z])", "'[y for y in z]'"),
        ("dict(a=2**9999)", "'2**9999'"),
        ("dict(a=-'x')", '''"-'x'"'''),
        ("dict(a=b'x')", '''"b'x'"'''),
        ("dict(a=f'{1}')", '''"f'{1}'"'''),
        ("dict(a={1: 2})", "'{1: 2}'"),
        ("dict(a=dict(**b))", "'dict(**b)'"),
        ("dict(a=dict([1]))", "'dict([1])'"),
        ("lambda: 1", None),
        ("[64, 64]", None),
        ("relu", None),
        ("", None),
        ("dict(", None),
        ("-" * 3900 + "1", None),
        ("[" * 2000, None),
        ("a." * 1500 + "b", None),
        ("dict(a=1)" + " " * 4000, None),
        ("9" * 3999, None),
    ],
)
def test_all_else_is_refused_and_not_evaluated(text: str, part: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_literal("policy_kwargs", text)
    message = str(caught.value)
    assert message.startswith("policy_kwargs is ")
    assert "; accepted: a mapping such as {net_arch: [64, 64]}, or the text dict(net_arch=[64, 64], " in message
    assert (f", with {part}; accepted" in message) is (part is not None)
    assert len(message) < 600


def test_the_table_of_a_file_says_what_loads_and_trains(zoo: Path, in_tmp: Path) -> None:
    script = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "zoo_table.py"))
    entries = ZOO[ZOO.index("Pendulum-v1") :].replace("CartPole-v1", "MountainCarContinuous-v0")
    (in_tmp / "some.yml").write_text("MissingEnv-v0: {n_envs: 1}\nCartPole-v1: {n_envs: x}\n" + entries)
    assert script["table"](Path("some.yml"), 16).splitlines() == [
        "| entry | loads as written | trains |",
        "| --- | --- | --- |",
        "| `MissingEnv-v0` | yes | not tried, the env is not installed |",
        "| `CartPole-v1` | no: some.yml, CartPole-v1.n_envs: n_envs is 'x'; accepted: an "
        "integer from 1 to 2147483647 |  |",
        "| `Pendulum-v1` | yes | yes, 16 env steps |",
        "| `MountainCarContinuous-v0` | yes | yes, 16 env steps |",
    ]
