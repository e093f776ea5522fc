"""How many workers there are, and how the envs are divided among them."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise

from marl_sb3.config.values import counted
from marl_sb3.envs.registry import EnvFactory, batched_factory
from marl_sb3.errors import ConfigError
from marl_sb3.vec_env.workers.plan import SharePlan

_POLLING_S = 5e-4  # longer than most policies take to choose actions


def shares(whole: SharePlan, n_workers: int) -> list[SharePlan]:
    """Divide envs among workers; the first workers get one more where the envs do not divide equally.

    Raises:
        ConfigError: there are more workers than envs.
    """
    n_envs = whole.num_envs
    if n_workers > n_envs:
        raise ConfigError(
            f"n_workers is {n_workers}, but n_envs is {n_envs}; accepted: at most {counted(n_envs, 'worker')}, or auto",
            key="n_workers",
        )
    firsts = [-(-number * n_envs // n_workers) for number in range(n_workers + 1)]
    return [
        replace(whole, first_index=first, num_envs=last - first, worker=worker, n_workers=n_workers)
        for worker, (first, last) in enumerate(pairwise(firsts))
    ]


def workers_for(n_workers: int | str, n_envs: int) -> int:
    """Return the number of workers for a setting: `auto` is one for each core, but no more than envs."""
    if n_workers != "auto":
        return int(n_workers)
    return min(_cores(), n_envs)


def polling_s(n_workers: int) -> float:
    """Return how long a worker and the main process poll for a message; 0 if they have no core each."""
    return _POLLING_S if n_workers < _cores() else 0.0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def makes_batches(factory: EnvFactory, vectorizer: str) -> bool:
    """Whether workers step their envs as batches.

    Raises:
        ConfigError: the vectorizer is not for workers, or the env has no batched version.
    """
    can = batched_factory(factory) is not None
    if vectorizer == "batched" and not can:
        raise ConfigError("the env has no batched version (`make_batched`); use the sync vectorizer", key="vectorizer")
    if vectorizer not in ("auto", "batched", "sync"):
        raise ConfigError(
            f"vectorizer is {vectorizer!r}, which has no workers; accepted with n_workers: auto, batched or sync",
            key="vectorizer",
        )
    return can and vectorizer != "sync"
