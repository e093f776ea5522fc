"""Small trainings of all kinds, for tests that save and load them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import stable_baselines3
import torch as th
from gymnasium import spaces
from toy_envs import NoisyEnv, SampledEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, make_vec_env
from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.core.learners.spec import hyperparameter_defaults
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.state.state import StateReader

SMALL = {"n_steps": 24, "batch_size": 16, "n_epochs": 2, "device": "cpu"}
PLANS = [
    [({"a": (2 + i, "terminated"), "b": (5, "truncated"), "c": (4, "both")}, {"a": 0, "b": 0, "c": i})]
    for i in range(3)
]


def arena(vectorizer: str = "auto", seed: int | None = None) -> Any:
    return make_vec_env("arena", n_envs=3, seed=seed, vectorizer=vectorizer, max_timesteps=17)


def noisy(seed: int | None = None) -> Any:
    return make_vec_env(NoisyEnv, n_envs=3, seed=seed, plans=PLANS)


def in_turns() -> Any:
    """Rollouts of 24 steps end while agent b waits, in the middle of an episode of 14."""
    script = {"a": (14, "truncated"), "b": (14, "terminated")}
    return make_vec_env(NoisyEnv, n_envs=2, plans=[[(script, {}, {"b": [2, 5, 8, 9, 10, 11, 12]})]] * 2)


PAIR = {"agent1": "pol1", "agent2": "pol2"}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "shared, batched": (arena, {"learning_rate": "lin_1e-3"}),
    "per agent, batched": (arena, {"policies": "per_agent"}),
    "per agent, sync": (lambda: arena("sync"), {"policies": "per_agent"}),
    "per agent, supersuit": (lambda: arena("supersuit"), {"policies": "per_agent"}),
    "mapped, one frozen": (
        arena,
        {
            "policies": {"pol1": PolicySpec(learning_rate=1e-3), "pol2": PolicySpec(gamma=0.9)},
            "policy_mapping_fn": PAIR,
            "policies_to_train": ["pol2"],
        },
    ),
    "torch": (arena, {"update_path": "torch"}),
    "stock PPO": (arena, {"policies": {"all": PolicySpec(stable_baselines3.PPO)}}),
    "staggered endings": (noisy, {}),
    "in turns": (in_turns, {"policies": "per_agent"}),
    "target_kl and clip_range_vf": (arena, {"target_kl": 0.003, "clip_range_vf": "lin_0.2"}),
}


def build(case: str, **settings: Any) -> MultiAgentAlgorithm:
    make, options = CASES[case]
    return MultiAgentAlgorithm(make(), **{**SMALL, **options, **settings})


def with_known_values(
    env: Any, policies: Any, n_steps: int, weight: list[float], gamma: float, gae_lambda: float
) -> MultiAgentAlgorithm:
    """A training that changes nothing, in which the value of an observation is its product with the weight."""
    fixed: dict[str, Any] = {"learning_rate": lambda _: 0.0, "policy_kwargs": {"net_arch": []}, "seed": 0}
    sizes = {"n_steps": n_steps, "batch_size": 2, "n_epochs": 1, "device": "cpu"}
    algorithm = MultiAgentAlgorithm(env, policies, gamma=gamma, gae_lambda=gae_lambda, **sizes, **fixed)
    for policy in algorithm.policies.values():
        with th.no_grad():
            policy.policy.value_net.weight.copy_(th.tensor([weight]))
            policy.policy.value_net.bias.zero_()
    return algorithm


def trained_by(
    name: str, space: spaces.Space[Any], policy: str, network: dict[str, Any], changes: str, **processing: Any
) -> MultiAgentAlgorithm:
    """A short training by any algorithm, in which some weights change that have `changes` in their names."""
    info = algorithm_info(name)
    replay = "learning_starts" in hyperparameter_defaults(info.algorithm_class)
    settings = {"n_steps": 4} if "a2c" in name else {"n_steps": 4, "batch_size": 4}
    if replay:
        settings = {"learning_starts": 0, "train_freq": 2, "batch_size": 2, "buffer_size": 9}
    network = {**network, "lstm_hidden_size": 4} if "recurrent" in name else network
    spec = PolicySpec(info.algorithm_class, policy, policy_kwargs=network, **processing, **settings)
    forces = replay and "dqn" not in name and name not in ("vdn", "qmix")
    actions = spaces.Box(-1, 1, (1,)) if forces else spaces.Discrete(3)
    env = make_vec_env(SampledEnv, observation_space=space, action_space=actions, masked=info.takes_masks)
    algorithm = MultiAgentAlgorithm(env, {"shared": spec}, n_steps=4, seed=1, device="cpu")
    before = {key: value.clone() for key, value in algorithm.policies["shared"].policy.state_dict().items()}
    algorithm.train_iteration()
    after = algorithm.policies["shared"].policy.state_dict()
    assert any(changes in key and not th.equal(value, after[key]) for key, value in before.items())
    return algorithm


def tensors_of(algorithm: MultiAgentAlgorithm) -> list[Any]:
    return list(algorithm.get_state()[1].values())


def assert_same(one: MultiAgentAlgorithm, other: MultiAgentAlgorithm) -> None:
    for a, b in zip(tensors_of(one), tensors_of(other), strict=True):
        assert set(a) == set(b)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def weights(algorithm: Any, *policies: str) -> dict[str, th.Tensor]:
    """Copies of all weights by policy and name, or of those of the policies."""
    return {
        f"{policy_id}/{name}": tensor.detach().clone()
        for policy_id in policies or algorithm.policies
        for name, tensor in algorithm.policies[policy_id].policy.state_dict().items()
    }


def are_equal(one: Mapping[str, th.Tensor], other: Mapping[str, th.Tensor]) -> bool:
    return one.keys() == other.keys() and all(th.equal(tensor, other[name]) for name, tensor in one.items())


def same_weights(one: Any, other: Any) -> bool:
    return are_equal(weights(one), weights(other))


def assert_goes_on_exactly(
    begun: Callable[[], MultiAgentAlgorithm], folder: Path, first: int, rest: int
) -> tuple[MultiAgentAlgorithm, MultiAgentAlgorithm]:
    """A training that is saved, loaded and goes on ends as the one that was saved, and has learned something.

    Args:
        begun: makes the training, always the same.
        first: env steps before it is saved.
        rest: env steps afterwards.
    """
    whole = begun().learn(first) if first else begun()
    whole.save(folder / "saved")
    whole.learn(rest, reset_num_timesteps=False)
    resumed = MultiAgentAlgorithm.load(folder / "saved", begun().env, device="cpu")
    assert not same_weights(whole, resumed)
    resumed.learn(rest, reset_num_timesteps=False)
    assert_same(whole, resumed)
    return whole, resumed


def without_clock(metrics: Mapping[str, Any], *others: str) -> dict[str, Any]:
    """The metrics by their whole names, but for those that a clock decides, and others that begin so."""
    timed = "time_total_s", "timers/", "throughput/", "perf/", "env_runners/episode_duration", "episode_duration"
    return {name: value for name, value in flatten(metrics).items() if not name.startswith((*timed, *others))}


def bits(tree: Any) -> Any:
    """A tree in which numbers are equal only if their bits and types are."""
    if isinstance(tree, np.ndarray):
        return tree.dtype.str, tree.shape, tree.tobytes()
    if isinstance(tree, Mapping):
        return {name: bits(value) for name, value in tree.items()}
    return [bits(value) for value in tree] if isinstance(tree, (list, tuple)) else (type(tree), repr(tree))


class Remembers(MultiAgentCallback):
    """Remembers whatever it is told to."""

    def __init__(self, memory: Any) -> None:
        super().__init__()
        self.memory = memory

    def get_state(self) -> dict[str, Any]:
        return {"memory": self.memory}

    def set_state(self, state: StateReader) -> None:
        self.memory = state.value("memory")


class Results(MultiAgentCallback):
    """Keeps the result of every iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[dict[str, Any]] = []

    def on_iteration_end(self, result: dict[str, Any]) -> bool:
        self.kept.append(result)
        return True


class Steps:
    """An `ActingWatcher` that keeps the steps of a training, and what all did in between."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.actions: list[Any] = []

    def begin_episodes(self, step: Any) -> None:
        self.steps.append(step.copy())

    def before_step(self, step: Any, acted: Any, actions: Any) -> None:
        self.actions.append(actions[0].copy())

    def after_step(self, step: Any) -> None:
        self.steps.append(step.copy())

    def restart_envs(self, env_indices: Any) -> None:
        raise AssertionError
