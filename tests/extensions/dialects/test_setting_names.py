"""RLlib's names mean SB3's everywhere: in files, after `--set`, in Python; numbers such as 1e5 are integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marl_sb3 import ConfigError, PolicySpec
from marl_sb3.core.learners import policy_specs
from marl_sb3.extensions.dialects import canonical_name
from marl_sb3.runs import TrainConfig, load_config

RLLIB: dict[str, Any] = {
    "lr": 1e-3, "minibatch_size": 64, "num_epochs": 2, "lambda": 0.9, "clip_param": 0.3, "entropy_coeff": 0.01,
    "vf_loss_coeff": 0.7, "grad_clip": 0.4, "fcnet_hiddens": [8, 8], "fcnet_activation": "relu", "gamma": 0.8,
}  # fmt: skip
SB3 = {
    "learning_rate": 1e-3, "batch_size": 64, "n_epochs": 2, "gae_lambda": 0.9, "clip_range": 0.3, "ent_coef": 0.01,
    "vf_coef": 0.7, "max_grad_norm": 0.4, "policy_kwargs": {"net_arch": [8, 8], "activation_fn": "relu"}, "gamma": 0.8,
}  # fmt: skip


def of_a_file(folder: Path, text: str) -> TrainConfig:
    path = folder / "h.yml"
    path.write_text(text, encoding="utf-8")
    return load_config("e", hparams=path)


def test_names_of_rllib_are_the_same_settings_everywhere(tmp_path: Path) -> None:
    assert load_config("e", settings=RLLIB).hyperparameters == SB3
    assert of_a_file(tmp_path, f"e: {RLLIB}").hyperparameters == SB3
    of_one_policy = load_config("e", settings={f"p.{name}": value for name, value in RLLIB.items()})
    assert of_one_policy.own_settings("p") == SB3
    assert of_a_file(tmp_path, f"e: {{policies: {{p: {RLLIB}}}}}").own_settings("p") == SB3
    (spec,) = policy_specs("shared", ["shared"], RLLIB, n_envs=1).values()
    assert spec.hyperparameters == PolicySpec(**SB3).hyperparameters


def test_a_spec_takes_the_names_of_sb3_alone() -> None:
    with pytest.raises(ConfigError, match=r"'lr' means learning_rate; .* accepted here: SB3's"):
        PolicySpec(lr=1e-3)


def test_a_later_source_wins_whatever_name_it_uses(tmp_path: Path) -> None:
    (tmp_path / "h.yml").write_text("e: {learning_rate: 0.1, lambda: 0.5, policy_kwargs: {ortho_init: false}}")
    settings = {"lr": 0.2, "gae_lambda": 0.6, "fcnet_hiddens": [4]}
    found = load_config("e", hparams=tmp_path / "h.yml", settings=settings).hyperparameters
    assert found == {
        "learning_rate": 0.2, "gae_lambda": 0.6, "policy_kwargs": {"ortho_init": False, "net_arch": [4]}
    }  # fmt: skip


BOTH = "are both given, but are two names of {}; accepted: one of them"


@pytest.mark.parametrize(
    ("given", "names", "setting"),
    [
        ({"lr": 1e-3, "learning_rate": 1e-3}, "lr and learning_rate", "learning_rate"),
        ({"lambda": 0.9, "lambda_": 0.9}, "lambda and lambda_", "gae_lambda"),
        (
            {"policy_kwargs": {"net_arch": [8]}, "fcnet_hiddens": [8]},
            "policy_kwargs: {net_arch: ...} and fcnet_hiddens",
            "policy_kwargs.net_arch",
        ),
    ],
)
def test_two_names_of_one_setting_are_refused(given: dict, names: str, setting: str, tmp_path: Path) -> None:
    message = f"{names} {BOTH.format(setting)}"
    for source in (
        lambda: load_config("e", settings=given),
        lambda: of_a_file(tmp_path, f"e: {given}"),
        lambda: of_a_file(tmp_path, f"e: {{policies: {{p: {given}}}}}"),
        lambda: policy_specs("shared", ["shared"], given, n_envs=1),
    ):
        with pytest.raises(ConfigError) as caught:
            source()
        assert message in str(caught.value)
    with pytest.raises(ConfigError, match=r"p\.lr and p\.learning_rate are both given"):
        load_config("e", settings={"p.lr": 1, "p.learning_rate": 1})


def test_arguments_of_an_env_keep_their_names() -> None:
    assert load_config("e", settings={"env.lr": 1.0, "env.n_steps": 2.0}).env_kwargs == {"lr": 1.0, "n_steps": 2.0}
    assert canonical_name("env.lambda") == "env.lambda"


def test_numbers_with_an_exponent_are_integers_where_these_are_meant(tmp_path: Path) -> None:
    config = of_a_file(
        tmp_path, "e: {n_timesteps: !!float 1e5, seed: 1e3, n_steps: 1e2, policies: {p: {n_epochs: 1e1}}}"
    )
    found = (config.n_timesteps, config.seed, config.hyperparameters["n_steps"], config.own_settings("p")["n_epochs"])
    assert found == (100_000, 1000, 100, 10)
    assert {type(value) for value in found} == {int}
    assert type(load_config("e", settings={"gamma": 1.0}).hyperparameters["gamma"]) is float
    with pytest.raises(ConfigError, match=r"n_timesteps is 1\.5; accepted"):
        load_config("e", n_timesteps=1.5)
