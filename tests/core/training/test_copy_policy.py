"""A policy is copied into another one of the same training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch as th
from small_trainings import are_equal, same_weights, weights

from marl_sb3 import PPO, ConfigError, MultiAgentAlgorithm, MultiAgentCallback, PolicySpec

SMALL = {"n_steps": 8, "batch_size": 8, "n_epochs": 1}


def two(learner: Mapping[str, Any], opponent: Mapping[str, Any], **options: Any) -> MultiAgentAlgorithm:
    """A policy that learns against one that does not, in the arena."""
    specs = {
        name: PolicySpec(PPO, **{"policy_kwargs": {"net_arch": [4]}, **SMALL, **own})
        for name, own in (("learner", learner), ("opponent", opponent))
    }
    mapping = {"agent1": "learner", "agent2": "opponent"}
    return MultiAgentAlgorithm("arena", specs, mapping, policies_to_train=["learner"], seed=0, device="cpu", **options)


class CopyEachIteration(MultiAgentCallback):
    """The opponent is the learner as it was after the latest iteration."""

    def on_iteration_end(self, result: dict[str, Any]) -> bool:
        self.algorithm.copy_policy("learner", "opponent")
        return True


def is_a_copy(algorithm: MultiAgentAlgorithm) -> bool:
    return are_equal(*(algorithm.policies[name].policy.state_dict() for name in ("learner", "opponent")))


@pytest.mark.parametrize("update_path", ["fused", "torch"])
def test_the_opponent_acts_by_the_copy(update_path: str) -> None:
    """In the next rollout it takes the actions that the learner's weights of the copy choose."""
    algorithm = two({}, {}, update_path=update_path)
    algorithm.train_iteration()
    assert not is_a_copy(algorithm)
    algorithm.copy_policy("learner", "opponent")
    assert is_a_copy(algorithm)
    with th.no_grad():  # so that it takes the action 2 always
        for policy_id in ("learner", "opponent"):
            algorithm.policies[policy_id].policy.action_net.bias[2] = {"learner": 1e9, "opponent": -1e9}[policy_id]
    algorithm.copy_policy("learner", "opponent")
    taken: list[int] = []
    step = algorithm.env.step
    algorithm.env.step = lambda actions: (taken.extend(actions[0][:, 1].tolist()), step(actions))[1]  # type: ignore[method-assign]
    algorithm.train_iteration()
    assert taken == [2] * 8


def test_running_statistics_are_copied_and_the_copies_are_apart() -> None:
    algorithm = two(*({"normalize_rewards": True},) * 2)
    algorithm.train_iteration()
    algorithm.copy_policy("learner", "opponent")
    learner, opponent = (algorithm.bundle().processing[name] for name in ("learner", "opponent"))
    before = opponent.get_state()
    assert str(before) == str(learner.get_state())
    algorithm.train_iteration()
    assert str(opponent.get_state()) == str(before) != str(learner.get_state())


def test_a_resumed_training_has_the_copies(tmp_path: Path) -> None:
    whole = two({}, {}).learn(24, callback=CopyEachIteration())
    first = two({}, {}).learn(16, callback=CopyEachIteration())
    second = MultiAgentAlgorithm.load(first.save(tmp_path / "saved"), "arena")
    second.learn(8, callback=CopyEachIteration(), reset_num_timesteps=False)
    assert same_weights(whole, second)


@pytest.mark.parametrize(
    ("learner", "opponent", "source", "expected"),
    [
        ({}, {}, "leaner", "unknown policy 'leaner'; accepted: learner, opponent"),
        (
            {},
            {"use_sde": False, "previous_action": True},
            "learner",
            r"is of shape \(4, 200\) in 'learner' and of shape",
        ),
        (
            {"policy_kwargs": {"net_arch": [4], "activation_fn": "relu"}},
            {},
            "learner",
            "policy_kwargs.activation_fn is ReLU in 'learner' and Tanh in 'opponent'",
        ),
        ({"normalize_rewards": True}, {}, "learner", "'learner' and 'opponent' have other normalisation"),
    ],
    ids=["no such policy", "other network", "other activation", "other statistics"],
)
def test_policies_that_differ_are_refused(
    learner: Mapping[str, Any], opponent: Mapping[str, Any], source: str, expected: str
) -> None:
    algorithm = two(learner, opponent)
    before = weights(algorithm, "opponent")
    with pytest.raises(ConfigError, match=expected):
        algorithm.copy_policy(source, "opponent")
    assert are_equal(before, weights(algorithm, "opponent"))
