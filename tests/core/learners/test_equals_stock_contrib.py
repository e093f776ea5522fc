"""The algorithms of sb3-contrib: one shared policy trains bit for bit as theirs does."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from stock_training import (
    BOX,
    IMAGE,
    TINY_CNN,
    Case,
    assert_close,
    counts_of,
    leaves,
    same,
    sampled,
    stock_model,
    train_ours,
    train_stock,
)
from toy_envs import SampledEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.errors import ConfigError

NETWORK = {"policy_kwargs": {"net_arch": [8]}}
OF_TRPO = {"small": {**NETWORK, "batch_size": 16, "n_critic_updates": 2, "learning_rate": 3e-3}}
PARTS = spaces.Dict({"mode": spaces.Discrete(4), "vector": BOX})
PENDULUM: dict[str, Any] = {"env": "Pendulum-v1", "env_kwargs": {"max_episode_steps": 9}}

TRPO = {
    "time limits inside rollouts": Case(**OF_TRPO),
    "terminations": Case("CartPole-v1", {}, n_steps=24, **OF_TRPO),
    "other settings": Case(
        hyperparameters={
            "cg_max_steps": 3,
            "cg_damping": 0.2,
            "line_search_shrinking_factor": 0.5,
            "line_search_max_iter": 4,
            "target_kl": 0.1,
            "sub_sampling_factor": 3,
            "normalize_advantage": False,
        },
        **OF_TRPO,
    ),
    "gSDE": Case(**PENDULUM, hyperparameters={"use_sde": True, "sde_sample_freq": 4}, **OF_TRPO),
    "MultiDiscrete actions": sampled(BOX, spaces.MultiDiscrete([3, 2]), **OF_TRPO),
    "Dict observations": sampled(PARTS, spaces.Discrete(2), policy="MultiInputPolicy", **OF_TRPO),
}
OF_PPO = {"small": {**NETWORK, "batch_size": 16, "n_epochs": 2, "learning_rate": 3e-3}}


def masked(observation_space: spaces.Space, action_space: spaces.Space, **options: Any) -> Case:
    """A toy env whose agents have action masks."""
    case = sampled(observation_space, action_space, **{**OF_PPO, **options})
    return replace(case, env_kwargs={**case.env_kwargs, "masked": True})


MASKABLE_PPO = {
    "Discrete actions": masked(BOX, spaces.Discrete(3)),
    "a batch size that leaves three over": masked(BOX, spaces.Discrete(3), hyperparameters={"batch_size": 15}),
    "other settings": masked(
        BOX,
        spaces.Discrete(4),
        hyperparameters={"clip_range_vf": 0.1, "target_kl": 1e-4, "ent_coef": 0.1, "normalize_advantage": False},
    ),
    "MultiDiscrete actions, other coefficients": masked(
        BOX, spaces.MultiDiscrete([3, 2]), hyperparameters={"ent_coef": 0.1, "normalize_advantage": False}
    ),
    "MultiBinary actions": masked(BOX, spaces.MultiBinary(3)),
    "Dict observations": masked(PARTS, spaces.Discrete(3), policy="MultiInputPolicy"),
    "images": masked(IMAGE, spaces.Discrete(3), policy="CnnPolicy", hyperparameters=TINY_CNN),
}


def with_memory(case: Case, **network: Any) -> Case:
    """The same with small LSTMs."""
    kwargs = {**case.hyperparameters.get("policy_kwargs", {"net_arch": [8]}), "lstm_hidden_size": 4, **network}
    policy = case.policy.replace("Policy", "LstmPolicy")
    return replace(case, policy=policy, hyperparameters={**case.hyperparameters, "policy_kwargs": kwargs})


RECURRENT_PPO = {
    "time limits inside rollouts": with_memory(sampled(BOX, spaces.Discrete(3), **OF_PPO)),
    "terminations": with_memory(Case("CartPole-v1", {}, n_steps=24, **OF_PPO), n_lstm_layers=2),
    "time limits, continuous actions": with_memory(Case(**PENDULUM, **OF_PPO), enable_critic_lstm=False),
    "gSDE": with_memory(Case(**PENDULUM, hyperparameters={"use_sde": True, "sde_sample_freq": 4}, **OF_PPO)),
    "a shared LSTM": with_memory(
        sampled(BOX, spaces.Discrete(3), **OF_PPO), shared_lstm=True, enable_critic_lstm=False
    ),
    "other settings": with_memory(
        sampled(
            BOX,
            spaces.MultiDiscrete([3, 2]),
            hyperparameters={
                "clip_range_vf": 0.1,
                "target_kl": 1e-4,
                "ent_coef": 0.1,
                "normalize_advantage": False,
                "batch_size": 19,
            },
            **OF_PPO,
        )
    ),
    "Dict observations": with_memory(sampled(PARTS, spaces.Discrete(2), policy="MultiInputPolicy", **OF_PPO)),
    "images": with_memory(sampled(IMAGE, spaces.Discrete(2), policy="CnnPolicy", hyperparameters=TINY_CNN, **OF_PPO)),
}
CASES = {
    f"{algorithm.__name__}, {name}": (algorithm, case)
    for algorithm, cases in (
        (sb3_contrib.TRPO, TRPO),
        (sb3_contrib.MaskablePPO, MASKABLE_PPO),
        (sb3_contrib.RecurrentPPO, RECURRENT_PPO),
    )
    for name, case in cases.items()
}


@cache
def stock_training(name: str) -> tuple[dict[str, Any], Any]:
    """What sb3-contrib begins with, and its trained model; only to read."""
    algorithm, case = CASES[name]
    model = stock_model(case, algorithm)
    before = deepcopy(leaves(model.get_parameters()))
    return before, train_stock(model, case)


@pytest.mark.parametrize("name", CASES)
def test_weights_and_optimizer_equal_those_of_sb3_contrib(name: str) -> None:
    algorithm, case = CASES[name]
    before, stock = stock_training(name)
    expected = leaves(stock.get_parameters())
    ours = train_ours(case, algorithm).policies["p"]
    found = leaves(ours.get_parameters())
    assert expected.keys() == found.keys()
    assert [path for path in expected if not same(expected[path], found[path])] == []
    assert counts_of(ours) == counts_of(stock)
    assert not any(same(before[path], found[path]) for path in before if path.endswith("net.weight"))


class FusedSequences(marl_sb3.RecurrentPPO):
    update_path = "fused"


class FusedMasks(marl_sb3.MaskablePPO):
    update_path = "fused"


OF_FUSED_MASKS = (
    "Discrete actions",
    "a batch size that leaves three over",
    "MultiDiscrete actions, other coefficients",
)


@pytest.mark.parametrize("name", OF_FUSED_MASKS)
def test_fused_maskable_ppo_trains_as_sb3_contribs_does_to_tolerance(name: str) -> None:
    case, (_, stock) = MASKABLE_PPO[name], stock_training(f"MaskablePPO, {name}")
    for found in (train_ours(case, FusedMasks).policies["p"], train_stock(stock_model(case, FusedMasks), case)):
        assert not found.rollout_buffer.action_masks.all()
        assert_close(found, stock, 1e-3)
        assert found.num_grad_updates == counts_of(stock)[1] * -(-2 * case.n_steps * 2 // found.batch_size)


class OneByOne(marl_sb3.RecurrentPPO):
    update_path = "torch"


@pytest.mark.parametrize("name", [name for name in RECURRENT_PPO if name not in ("images", "gSDE")])
def test_fused_recurrent_ppo_trains_as_sb3_contribs_does_to_tolerance(name: str) -> None:
    case, (_, stock) = RECURRENT_PPO[name], stock_training(f"RecurrentPPO, {name}")
    by_pytorch = name == "Dict observations"
    ours: Any = train_ours(case, FusedSequences).policies["p"]
    drop_in = train_stock(stock_model(case, FusedSequences), case)
    for found in (ours, drop_in):
        assert found.rollout_buffer.whole_sequences == by_pytorch
        assert_close(found, stock, 1e-3)
        assert found.num_grad_updates == ours.num_grad_updates > 0


def test_on_the_torch_path_recurrent_ppo_equals_sb3_contribs_in_its_place() -> None:
    name = "time limits inside rollouts"
    case, (_, stock) = RECURRENT_PPO[name], stock_training(f"RecurrentPPO, {name}")
    ours = train_stock(stock_model(case, OneByOne), case)
    found, logged = leaves(ours.get_parameters()), ours.logger.name_to_value
    assert all(same(value, found[path]) for path, value in leaves(stock.get_parameters()).items())
    assert {name for name in stock.logger.name_to_value if name.startswith("train/")} <= logged.keys()


def test_trpo_refuses_what_it_would_fail_on_in_its_first_update() -> None:
    env = make_vec_env(SampledEnv, observation_space=PARTS, action_space=spaces.Discrete(2))
    spec = PolicySpec(sb3_contrib.TRPO, "MultiInputPolicy", sub_sampling_factor=2)
    with pytest.raises(ConfigError, match="policy 'p': sub_sampling_factor is 2, which TRPO cannot do with Dict"):
        MultiAgentAlgorithm(env, {"p": spec}, n_steps=8)


def test_trpo_without_a_direction_keeps_its_actor() -> None:
    """Nothing is paid, and every value is 0."""
    env = make_vec_env(ScriptedEnv, rewards={"a": [0.0] * 3, "b": [0.0] * 3})
    algorithm = MultiAgentAlgorithm(env, {"p": PolicySpec(sb3_contrib.TRPO)}, n_steps=6, batch_size=4, device="cpu")
    policy = algorithm.policies["p"].policy
    with th.no_grad():
        policy.value_net.weight.zero_()
    before = policy.action_net.weight.clone()
    metrics = algorithm.train_iteration()["learners"]["p"]
    assert metrics["line_search_success"] == 0
    assert th.equal(policy.action_net.weight, before)
