"""The example on one page computes what the library computes: the same metrics and weights, to the last bit."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from toy_envs import NoisyEnv

from marl_sb3 import PPO, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.envs.arena import ArenaEnv

EXAMPLE = Path(__file__).parent.parent / "examples" / "one_file.py"
sys.path.insert(0, str(EXAMPLE.parent))
import one_file  # noqa: E402

sys.path.remove(str(EXAMPLE.parent))

SEED, N_ENVS, ITERATIONS = 3, 3, 2
SETTINGS = {"n_steps": 18, "batch_size": 16, "n_epochs": 2, "learning_rate": 3e-3, "policy_kwargs": {"net_arch": [8]}}
# Agents join late, wait for turns, agent a when the first rollout ends too, and end at different times, in all ways.
EPISODES = (
    ({"a": (6, "truncated"), "b": (4, "terminated"), "c": (7, "truncated")}, {"c": 2}, {"a": {2, 3}, "b": {1}}),
    ({"a": (5, "both"), "b": (5, "truncated"), "c": (9, "truncated")}, {}, {"a": {1}, "c": {3, 4}}),
)
ENVS: dict[str, Callable[[], Any]] = {
    "arena": lambda: ArenaEnv(height=4, max_timesteps=17),
    "turns": lambda: NoisyEnv([EPISODES]),
}
METRICS = {"policy_loss": "policy_gradient_loss", "vf_loss": "value_loss", "mean_kl_loss": "approx_kl"}


def on_one_page(env: str, shared: bool) -> tuple[list[Any], list[torch.Tensor]]:
    """Train by the example; returns returns and losses of each iteration, and the weights at the end."""
    envs = one_file.Envs(ENVS[env], N_ENVS, SEED)
    policy_of = {agent: "shared" if shared else agent for agent in envs.agents}
    policies = one_file.make_policies(envs, policy_of, SEED, **SETTINGS)
    results = list(one_file.train(envs, policies, ITERATIONS * SETTINGS["n_steps"] * N_ENVS))
    metrics = [
        [*(result["returns"].values()), *(own[f"train/{name}"] for name in METRICS.values())]
        for result in results
        for own in result["learners"].values()
    ]
    return metrics, [weights for each in policies.values() for weights in each.ppo.policy.state_dict().values()]


@functools.cache
def by_the_library(env: str, shared: bool, algorithm: type) -> tuple[list[Any], list[torch.Tensor]]:
    """The same by `MultiAgentAlgorithm`."""
    vec_env = make_vec_env(ENVS[env], n_envs=N_ENVS, seed=SEED, vectorizer="sync")
    spec, mapped = PolicySpec(algorithm, **SETTINGS), (lambda agent: "shared") if shared else (lambda agent: agent)
    specs = dict.fromkeys(["shared"] if shared else vec_env.agents, spec)
    algo = MultiAgentAlgorithm(vec_env, specs, mapped, seed=SEED, device="cpu", update_path="torch")
    results = [algo.train_iteration() for _ in range(ITERATIONS)]
    metrics = [
        [*(result["env_runners"]["agent_episode_returns_mean"].values()), *(own[name] for name in METRICS)]
        for result in results
        for own in result["learners"].values()
    ]
    return metrics, [weights for each in algo.policies.values() for weights in each.policy.state_dict().values()]


def differ(one: tuple[list[Any], list[torch.Tensor]], other: tuple[list[Any], list[torch.Tensor]]) -> bool:
    assert len(one[1]) == len(other[1])
    return one[0] != other[0] or not all(map(torch.equal, one[1], other[1]))


@pytest.mark.parametrize("algorithm", [stable_baselines3.PPO, PPO], ids=["stock PPO", "PPO on PyTorch's path"])
@pytest.mark.parametrize("shared", [False, True], ids=["per agent", "shared"])
@pytest.mark.parametrize("env", ENVS)
def test_one_page_computes_the_same_bits(env: str, shared: bool, algorithm: type) -> None:
    assert not differ(on_one_page(env, shared), by_the_library(env, shared, algorithm))


# --- What the comparison would notice --------------------------------------------------------------------------------


def swap_ends(monkeypatch: pytest.MonkeyPatch, taken_for: str) -> None:
    right = one_file.Envs.step

    def step(self: Any, actions: np.ndarray) -> Any:
        taken = right(self, actions)
        ended, none = taken.terminated | taken.truncated, np.zeros_like(taken.truncated)
        taken.terminated, taken.truncated = (ended, none) if taken_for == "terminated" else (none, ended)
        return taken

    monkeypatch.setattr(one_file.Envs, "step", step)


def pay_only_who_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    right = one_file.TurnBuffer.pay

    def pay(self: Any, rewards: np.ndarray, ended: np.ndarray) -> None:
        right(self, np.where(self.open_at == self.pos - 1, rewards, np.float32(0)), ended)

    monkeypatch.setattr(one_file.TurnBuffer, "pay", pay)


def drop_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    right = one_file.TurnBuffer.complete

    def complete(self: Any, *arguments: Any) -> None:
        right(self, *arguments)
        self.waiting = np.zeros_like(self.waiting)
        self.carried = None

    monkeypatch.setattr(one_file.TurnBuffer, "complete", complete)


def seed_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    right = one_file.derived_seed
    monkeypatch.setattr(one_file, "derived_seed", lambda seed, *path: right(seed, *path) if path[1:] else seed)


FAULTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], list[str]]] = {
    "no value follows a truncation": (functools.partial(swap_ends, taken_for="terminated"), ["arena", "turns"]),
    "a value follows a termination": (functools.partial(swap_ends, taken_for="truncated"), ["turns"]),
    "waiting is not paid": (pay_only_who_acts, ["turns"]),
    "open transitions end with the rollout": (drop_what_is_open, ["turns"]),
    "all policies have one seed": (seed_all_alike, ["arena"]),
}


@pytest.mark.parametrize(("fault", "env"), [(name, env) for name, (_, envs) in FAULTS.items() for env in envs])
def test_a_planted_fault_is_noticed(fault: str, env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[fault][0](monkeypatch)
    assert differ(on_one_page(env, shared=False), by_the_library(env, False, stable_baselines3.PPO))


def test_it_takes_nothing_but_the_env_from_marl_sb3() -> None:
    tree = ast.parse(EXAMPLE.read_text(encoding="utf-8"))
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [name for name in modules if name and name.startswith("marl_sb3")] == ["marl_sb3.envs.arena"]
