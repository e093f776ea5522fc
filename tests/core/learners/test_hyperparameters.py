"""Hyperparameters: SB3's names and defaults, the values that make sense, and text that becomes a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch as th

from marl_sb3 import PPO, ConfigError, MaskablePPO, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.config.algorithms import info_of, takes_integers
from marl_sb3.core.config.settings import PolicySection
from marl_sb3.core.learners.spec import hyperparameter_defaults, resolve_hyperparameters
from marl_sb3.core.state.state import StateReader
from marl_sb3.doors import POLICY_SECTIONS
from marl_sb3.extensions.fast.builtin import ALGORITHMS


@pytest.mark.parametrize("algorithm", [PPO, stable_baselines3.PPO])
def test_defaults_are_those_of_sb3_without_what_belongs_to_the_run(algorithm: type) -> None:
    assert hyperparameter_defaults(algorithm) == {
        "learning_rate": 3e-4,
        "n_steps": 2048,
        "batch_size": 64,
        "n_epochs": 10,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_range": 0.2,
        "clip_range_vf": None,
        "normalize_advantage": True,
        "ent_coef": 0.0,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "use_sde": False,
        "sde_sample_freq": -1,
        "target_kl": None,
        "policy_kwargs": None,
    }


@pytest.mark.parametrize(
    "algorithm", [*(info.algorithm_class for info in ALGORITHMS.values()), stable_baselines3.PPO], ids=repr
)
def test_the_table_of_an_algorithm_has_its_arguments_and_accepts_their_defaults(algorithm: type) -> None:
    defaults = hyperparameter_defaults(algorithm)
    info = info_of(algorithm)
    assert info is not None
    assert set(info.kinds) == set(defaults)
    assert resolve_hyperparameters(algorithm, defaults) == defaults


def test_a_subclass_has_the_table_of_its_base_and_arguments_of_its_own() -> None:
    class Own(PPO):
        def __init__(self, *arguments: Any, gamma: float = 0.9, weird: Any = None, **more: Any) -> None:
            super().__init__(*arguments, gamma=gamma, **more)

    assert resolve_hyperparameters(Own, {"weird": object, "gamma": 1}) == {"weird": object, "gamma": 1}
    with pytest.raises(ConfigError, match="gamma is 2"):
        resolve_hyperparameters(Own, {"gamma": 2})


@pytest.mark.parametrize(
    ("device", "policy_kwargs", "made_on"),
    [
        ("auto", {"net_arch": [256, 256]}, ["cpu"]),
        ("auto", {"net_arch": [512]}, ["cpu"]),  # few numbers are observed: one large dimension is no wide layer
        ("auto", {"net_arch": [512, 512]}, ["cpu", "cuda"]),
        ("cuda", {"net_arch": [4]}, ["cuda"]),
        ("cpu", {"net_arch": [512, 512]}, ["cpu"]),
    ],
)
def test_auto_takes_a_gpu_for_wide_networks_only(
    device: str, policy_kwargs: dict[str, Any], made_on: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(PPO):
        def __init__(self, *arguments: Any, device: str, **more: Any) -> None:
            devices.append(device)
            super().__init__(*arguments, device="cpu", **more)

    devices: list[str] = []
    monkeypatch.setattr(th.cuda, "is_available", lambda: True)
    spec = PolicySpec(Own, policy_kwargs=policy_kwargs, batch_size=4)
    MultiAgentAlgorithm(make_vec_env("arena"), {"shared": spec}, n_steps=4, device=device)
    assert devices == made_on


ACCEPTED = {
    "learning_rate": [0, 0.0, 1e-9, 1, 2.5, np.float64(3e-4)],
    "n_steps": [1, 4096],
    "batch_size": [2],
    "n_epochs": [1],
    "gamma": [0, 0.5, 1, 1.0],
    "gae_lambda": [0, 1],
    "clip_range": [0.01],
    "clip_range_vf": [None, 0.1],
    "normalize_advantage": [True, False],
    "ent_coef": [0, 0.01],
    "vf_coef": [0, 1],
    "max_grad_norm": [0.1],
    "use_sde": [True],
    "sde_sample_freq": [-1, 0, 4],
    "target_kl": [None, 0.01],
    "policy_kwargs": [None, {}],
}
REFUSED: dict[str, list[Any]] = {
    "learning_rate": [1e308, -1e-3, float("nan"), float("inf"), True, None, "3e-4", [1]],
    "n_steps": [0, -1, 2.0, True, "8", None, 10**6 + 1],
    "batch_size": [1, 0, 64.0],
    "n_epochs": [0, 1.5, 10**6 + 1],
    "gamma": [-0.1, 1.0001, "0.9", True],
    "gae_lambda": [2],
    "clip_range": [0, None, False, 1e308],
    "clip_range_vf": [0, -1, "none", 1e308],
    "normalize_advantage": [1, 0, "true", None],
    "ent_coef": [-0.01, None],
    "vf_coef": [-1],
    "max_grad_norm": [0],
    "use_sde": [0, "yes"],
    "sde_sample_freq": [-2, 0.5],
    "target_kl": [0, -0.1],
    "policy_kwargs": ["relu", 3, ["net_arch"]],
}


def cases(by_name: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in by_name.items() for value in values]


@pytest.mark.parametrize(("name", "value"), cases(ACCEPTED))
def test_value_in_range_stays_as_it_is(name: str, value: Any) -> None:
    assert resolve_hyperparameters(PPO, {name: value}) == {name: value}


@pytest.mark.parametrize(("name", "value"), cases(REFUSED))
def test_value_out_of_range_is_refused_with_what_is_accepted(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_hyperparameters(PPO, {name: value})
    assert caught.value.key == name
    assert str(caught.value).startswith(f"{name} is {value!r}; accepted: ")


def test_every_hyperparameter_has_its_range() -> None:
    assert set(ACCEPTED) == set(REFUSED) == set(hyperparameter_defaults(PPO))


def test_integers_may_be_written_with_an_exponent() -> None:
    assert all(map(takes_integers, ["n_steps", "batch_size", "sde_sample_freq", "cg_max_steps", "n_critic_updates"]))
    assert not any(map(takes_integers, ["learning_rate", "gamma", "target_kl", "policy_kwargs"]))


# Schedules and networks


@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "clip_range_vf"])
def test_lin_is_a_line_down_to_zero(name: str) -> None:
    schedule = resolve_hyperparameters(PPO, {name: "lin_0.8"})[name]
    assert [schedule(remaining) for remaining in (1.0, 0.75, 0.5, 0.0)] == pytest.approx([0.8, 0.6, 0.4, 0.0])


@pytest.mark.parametrize(
    "text",
    [
        "lin_",
        "lin_0",
        "lin_-1",
        "lin_nan",
        "lin_inf",
        "lin_1e999",
        "lin_1e-999",
        "lin_1e7",
        "lin_x",
        "line_1",
        "lin_1_0.1",
        "exp_0",
        "exp_1_0",
        "exp_1_1e7",
        "",
    ],
)
def test_other_schedules_are_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"accepted: a number from 0 to 1000000, or lin_X for a line from X down to 0"
    ):
        resolve_hyperparameters(PPO, {"learning_rate": text})


def test_a_schedule_of_the_callers_own_is_kept() -> None:
    def schedule(remaining: float) -> float:
        return remaining

    assert resolve_hyperparameters(PPO, {"clip_range": schedule})["clip_range"] is schedule


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tanh", th.nn.Tanh),
        ("relu", th.nn.ReLU),
        ("elu", th.nn.ELU),
        ("gelu", th.nn.GELU),
        ("silu", th.nn.SiLU),
        ("leaky_relu", th.nn.LeakyReLU),
        (th.nn.Mish, th.nn.Mish),
    ],
)
def test_activation_is_a_name_or_a_class(name: Any, expected: type) -> None:
    given = {"activation_fn": name, "net_arch": [3]}
    resolved = resolve_hyperparameters(PPO, {"policy_kwargs": given})
    assert resolved == {"policy_kwargs": {"activation_fn": expected, "net_arch": [3]}}
    assert given["activation_fn"] is name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            ({"policy_kwargs.activation_fn": name}, f"activation_fn is '{name}'; accepted: tanh, relu, elu")
            for name in ("ReLU", "leakyrelu", "softmax")
        ),
        ({"learning_rte": 1}, "unknown hyperparameter 'learning_rte' of PPO; did you mean learning_rate"),
        ({"zzz": 1}, "unknown hyperparameter 'zzz' of PPO; accepted: learning_rate, n_steps, batch_size"),
        ({"seed": 1}, "'seed' is set by marl_sb3 for all policies; it is not a hyperparameter"),
        ({"rollout_buffer_class": 1}, "'rollout_buffer_class' is set by marl_sb3"),
        (
            {"clip_range_vf": -1},
            "accepted: a number above 0 and at most 1000000, or lin_X for a line from X down to 0, or .*, or null",
        ),
        ({"target_kl": 0}, "accepted: a number above 0, or null"),
        ({"gamma": 2}, "accepted: a number from 0 to 1"),
        ({"batch_size": 1}, "accepted: an integer of at least 2"),
    ],
)
def test_refusals_spell_out_every_form_and_every_name(given: dict[str, Any], message: str) -> None:
    ((key, value),) = given.items()
    name, _, part = key.partition(".")
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_hyperparameters(PPO, {name: {part: value} if part else value})
    assert caught.value.key == key


# Specs


@pytest.mark.parametrize(("name", "algorithm"), [("ppo", PPO), ("PPO", PPO), ("MaskablePPO", MaskablePPO)])
def test_an_algorithm_may_be_named(name: str, algorithm: type) -> None:
    assert PolicySpec(name, gamma=0.5).algorithm is algorithm


def test_spec_fills_in_defaults_where_it_has_no_value_of_its_own() -> None:
    spec = PolicySpec(stable_baselines3.PPO, "CnnPolicy", gamma=0.5, target_kl=None)
    filled = spec.with_defaults({"gamma": 0.9, "target_kl": 0.1, "n_epochs": 3, "learning_rate": "lin_1.0"})
    assert (filled.algorithm, filled.policy) == (stable_baselines3.PPO, "CnnPolicy")
    schedule = filled.hyperparameters.pop("learning_rate")
    assert schedule(0.5) == 0.5
    assert filled.hyperparameters == {"gamma": 0.5, "target_kl": None, "n_epochs": 3}
    assert spec.hyperparameters == {"gamma": 0.5, "target_kl": None}


@pytest.mark.parametrize(
    ("arguments", "key", "message"),
    [
        ((dict,), "algo", "algorithm is <class 'dict'>; accepted: .*PPO.* and subclasses"),
        (("poo",), "algo", "unknown algorithm 'poo'; accepted: ppo, a2c, "),
        (
            (PPO, "MlpPolcy"),
            "policy",
            "unknown policy 'MlpPolcy' of PPO; accepted: MlpPolicy, CnnPolicy, Multi",
        ),
        ((PPO, "CnnLstmPolicy"), "policy", "'CnnLstmPolicy' of PPO; accepted: MlpPolicy.* algorithm='recurrent_ppo'"),
    ],
)
def test_spec_refuses_what_it_cannot_make(arguments: Any, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        PolicySpec(*arguments)
    assert caught.value.key == key


def test_spec_says_what_it_is() -> None:
    assert repr(PolicySpec(gamma=0.9)) == "PolicySpec(PPO, 'MlpPolicy', gamma=0.9)"


@dataclass(frozen=True)
class Curious(PolicySection):
    """Settings of a part of learners, in the user's own code."""

    bonus: float = 0.0


def test_a_section_of_settings_at_the_door_is_checked_and_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POLICY_SECTIONS, "_added", {**POLICY_SECTIONS.added(), "curiosity": Curious})
    spec = PolicySpec(curiosity={"bonus": 0.5})
    assert spec.of_parts == PolicySpec(bonus=0.5).with_defaults({"bonus": 1.0}).of_parts == {"bonus": 0.5}
    assert PolicySpec.from_plain(StateReader(spec.to_plain())).of_parts == {"bonus": 0.5}
    with pytest.raises(ConfigError, match=r"^bonus is 'much'; accepted: a number"):
        PolicySpec(bonus="much")
