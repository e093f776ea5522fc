"""Small algorithms to evaluate, and what two evaluations of one must have in common."""

from __future__ import annotations

from typing import Any

from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, make_vec_env

SMALL: dict[str, Any] = {
    "n_steps": 8,
    "batch_size": 4,
    "n_epochs": 1,
    "policy_kwargs": {"net_arch": [4]},
    "seed": 0,
    "device": "cpu",
}
STAGGERED = {"a": (2, "truncated"), "b": (3, "terminated")}
PAY = {"a": [1.0, 2.0], "b": [10.0, 20.0, 30.0]}


def make(env: Any = ScriptedEnv, policies: Any = "shared", env_kwargs: Any = None, **options: Any) -> Any:
    vec_env = make_vec_env(env, n_envs=2, seed=0, **(env_kwargs or {}))
    return MultiAgentAlgorithm(vec_env, policies, **{**SMALL, **options})


def plans(n_envs: int) -> list[Any]:
    """Each env has its own scripts: agents end at different times, in each episode differently."""
    return [
        [({"a": (2 + index, "truncated"), "b": (4, "terminated")}, {}), ({"a": (5, "both"), "b": (1, "truncated")}, {})]
        for index in range(n_envs)
    ]
