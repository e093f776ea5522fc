"""RecurrentPPO's updates in kernels: beside PyTorch, where agents wait or have masks, and what is left to PyTorch.

That they equal sb3-contrib's is tested with those of the other algorithms, in `test_equals_stock_contrib`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from toy_envs import CHOICES, Forbidding, NoisyEnv, SampledEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env

NETWORK: dict[str, Any] = {"net_arch": [4], "lstm_hidden_size": 5}
SETTINGS: dict[str, Any] = {"n_steps": 12, "batch_size": 7, "n_epochs": 3, "learning_rate": 0.01, "ent_coef": 0.01}
BOX = spaces.Box(-1, 1, (3,), np.float32)
SPACES = {
    "numbers, Discrete": (BOX, spaces.Discrete(3)),
    "categories, MultiDiscrete": (spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([2, 3])),
    "a category, Box": (spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)),
}


def sampled(names: str = "numbers, Discrete", network: Any = NETWORK, **more: Any) -> MultiAgentAlgorithm:
    seen, chosen = SPACES[names]
    env = make_vec_env(SampledEnv, n_envs=3, observation_space=seen, action_space=chosen)
    spec = PolicySpec(marl_sb3.RecurrentPPO, **{**SETTINGS, "policy_kwargs": network, **more})
    return MultiAgentAlgorithm(env, {"p": spec}, seed=3, device="cpu")


def waiting() -> MultiAgentAlgorithm:
    """Agents that wait, end at other times, and are in the middle of a transition when rollouts end."""
    agents = {"a": (7, "truncated"), "b": (7, "terminated"), "c": (3, "truncated")}
    env = make_vec_env(NoisyEnv, n_envs=2, seed=1, plans=[[(agents, {}, {"b": [1, 3, 4, 6], "c": [1]})]] * 2)
    spec = PolicySpec(marl_sb3.RecurrentPPO, **SETTINGS, policy_kwargs=NETWORK)
    return MultiAgentAlgorithm(env, {"p": spec}, seed=3, device="cpu")


def masked() -> MultiAgentAlgorithm:
    env = make_vec_env(lambda: Forbidding(CHOICES["MultiDiscrete"], False), n_envs=2, seed=1)
    spec = PolicySpec("maskable_recurrent_ppo", **SETTINGS, policy_kwargs=NETWORK)
    return MultiAgentAlgorithm(env, {"p": spec}, seed=3, device="cpu")


TRAININGS: dict[str, Any] = {
    **{names: lambda names=names: sampled(names) for names in SPACES},
    "two layers of one-hot inputs": lambda: sampled("categories, MultiDiscrete", {**NETWORK, "n_lstm_layers": 2}),
    "a shared LSTM": lambda: sampled("a category, Box", {**NETWORK, "shared_lstm": True, "enable_critic_lstm": False}),
    "a critic without LSTM": lambda: sampled("categories, MultiDiscrete", {**NETWORK, "enable_critic_lstm": False}),
    "agents that wait": waiting,
    "masks": masked,
    "one minibatch": lambda: sampled(batch_size=1000),
    "clipped values, updates that a KL ends": lambda: sampled(clip_range_vf=0.05, target_kl=1e-3, learning_rate=1e-2),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_kernels_train_as_pytorch_does(name: str) -> None:
    """Weights, state of the optimizer and what is recorded, after several updates, to tolerance."""
    sides = []
    for path in ("torch", "fused"):
        algorithm = TRAININGS[name]()
        policy: Any = algorithm.policies["p"]
        policy.update_path = path
        metrics = [algorithm.train_iteration()["learners"]["p"] for _ in range(3)]
        assert (policy.kernels() is not None) == (path == "fused")
        state = policy.policy.optimizer.state
        moments = [value for each in policy.policy.parameters() for _, value in sorted(state[each].items())]
        tensors = [*policy.policy.state_dict().values(), *moments]
        sides.append((metrics, tensors))
    (expected, weights), (found, own) = sides
    for each, other in zip(expected, found, strict=True):
        assert each.keys() == other.keys()
        for metric, value in each.items():
            if metric != "gradients_global_norm":
                assert other[metric] == (None if value is None else pytest.approx(value, rel=1e-3, abs=1e-5)), metric
    for one, two in zip(weights, own, strict=True):
        th.testing.assert_close(two, one, atol=2e-5, rtol=1e-3)


LEFT_TO_PYTORCH = {
    "PyTorch computes the updates, not the faster kernels (dropout)": {
        "n_lstm_layers": 2,
        "lstm_kwargs": {"dropout": 0.5},
    },
    "chooses the actions and computes the updates, not the faster kernels (policy class MemoryPolicy)": {"cell": "gru"},
}


@pytest.mark.parametrize("reason", LEFT_TO_PYTORCH)
def test_what_kernels_do_not_train_is_left_to_pytorch_and_said(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "marl_sb3")
    algorithm = sampled(network={**NETWORK, **LEFT_TO_PYTORCH[reason]})
    assert reason in caplog.text
    assert algorithm.train_iteration()["learners"]["p"]["num_grad_updates_lifetime"] > 0
    buffer: Any = algorithm.policies["p"].rollout_buffer
    assert buffer.whole_sequences


def test_a_change_between_updates_leaves_them_to_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    algorithm = sampled()
    policy: Any = algorithm.policies["p"]
    algorithm.train_iteration()
    assert not policy.rollout_buffer.whole_sequences
    caplog.set_level(logging.INFO, "marl_sb3")
    policy.policy.optimizer.param_groups[0]["weight_decay"] = 0.1
    algorithm.train_iteration()
    assert caplog.messages == [
        "policy p: from here on, PyTorch computes the updates, not the faster kernels (weight decay); faster with "
        "policy_kwargs.optimizer_kwargs={weight_decay: 0}"
    ]


def test_a_kl_that_is_set_between_updates_ends_the_next_one() -> None:
    algorithm = sampled()
    policy: Any = algorithm.policies["p"]
    algorithm.train_iteration()
    policy.target_kl, before = 1e-9, policy.num_grad_updates
    algorithm.train_iteration()
    assert policy.num_grad_updates < before + 2
    assert policy.kernels() is not None


def test_a_rollout_trains_again_after_pytorch_has_made_minibatches_of_it() -> None:
    algorithm = sampled()
    policy: Any = algorithm.policies["p"]
    algorithm.train_iteration()
    for path in ("torch", "fused"):
        policy.update_path, before = path, policy.policy.value_net.weight.clone()
        policy.train()
        assert not th.equal(policy.policy.value_net.weight, before)
