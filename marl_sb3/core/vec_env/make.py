"""Make vectorised envs, by one of several vectorizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from pettingzoo import AECEnv, ParallelEnv

from marl_sb3.core.config.values import Count, NumberOfEnvs, NumberOfWorkers, PositiveInt, PositiveSeconds, require
from marl_sb3.core.envs.registry import EnvFactory, env_factory, takes_argument, why_not_batched
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv, VecEnvRequest
from marl_sb3.core.vec_env.separate_envs import SyncVecEnv
from marl_sb3.doors import ENV_KINDS, STEPPED_ELSEWHERE, VECTORIZERS
from marl_sb3.errors import ConfigError, require_known


def as_vec_env(env: MultiAgentVecEnv | str | EnvFactory) -> MultiAgentVecEnv:
    """Return `env` if it is a vec env; otherwise make a vec env of one env from an id or a factory.

    Raises:
        ConfigError: it is of another type; the message says how `make_vec_env` takes it.
    """
    return env if isinstance(env, MultiAgentVecEnv) else make_vec_env(env)


def _require_maker(env: Any) -> None:
    """Refuse an env object: a vec env needs a factory that makes each of its envs."""
    if ENV_KINDS["several"].recognises(env):
        ENV_KINDS["several"].as_parallel(env)  # which refuses it
    if isinstance(env, (ParallelEnv, AECEnv, gymnasium.Env, MultiAgentVecEnv)):
        what = "a vec env already" if isinstance(env, MultiAgentVecEnv) else "a single env"
        words = (
            f"env is {what}, {type(env).__name__}; accepted: an env id, or a function that makes one, called for each"
        )
        raise ConfigError(
            f"{words}: make_vec_env(lambda: ..., n_envs=8); see docs/coming_from/pettingzoo.md", key="env"
        )


def _auto(request: VecEnvRequest) -> MultiAgentVecEnv:
    why_not = why_not_batched(request.factory, request.env_kwargs)
    made = VECTORIZERS["batched" if why_not is None else "sync"](request)
    made.why_not_batched = why_not
    return made


VECTORIZERS.add("auto", _auto)
VECTORIZERS.add("batched", "marl_sb3.core.vec_env.batched_vec_env:batched_vec_env")
VECTORIZERS.add("sync", lambda request: SyncVecEnv(request.make_env, request.n_envs, request.seed))
# SuperSuit takes time to import.
VECTORIZERS.add("supersuit", "marl_sb3.core.vec_env.supersuit_vec_env:supersuit_vec_env")


def _without_nesting(factory: EnvFactory, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the env; `env_kwargs={...}`, as SB3's function has them, stand beside the others."""
    outer, inner = dict(env_kwargs), env_kwargs.get("env_kwargs")
    if not isinstance(inner, Mapping) or takes_argument(factory, "env_kwargs"):
        return outer
    del outer["env_kwargs"]
    if twice := outer.keys() & inner.keys():
        name = min(twice)
        raise ConfigError(f"{name} is given by itself and in env_kwargs; accepted: once", key=f"env.{name}")
    return {**outer, **inner}


def make_vec_env(
    env: str | EnvFactory,
    n_envs: int = 1,
    seed: int | None = None,
    vectorizer: str = "auto",
    episode_horizon: int | None = None,
    n_workers: int | str = 0,
    worker_timeout_s: float = 300.0,
    max_worker_restarts: int = 5,
    env_state: bool = False,
    **env_kwargs: Any,
) -> MultiAgentVecEnv:
    """Make `n_envs` envs that step together.

    Args:
        env: an env id as on the command line, or a factory of a `ParallelEnv`, an `AECEnv` or a `gymnasium.Env` (its
            class, say).
        n_envs: number of envs, at least 1.
        seed: run seed, from which the seeds of all episodes are derived; None draws one.
        vectorizer: `batched` for envs with a batched version, `sync` for any env, `supersuit` for envs in which all
            agents have the same spaces, or `auto`: `batched` if possible, otherwise `sync`. All of them give the same
            results. Others by their names at the door `VECTORIZERS`.
        episode_horizon: env steps after which all agents of an env are truncated, if its episode is not over before;
            None: the env alone ends its episodes.
        n_workers: number of processes that step the envs, with the same results; 0: this process steps them; `auto`:
            one for each core.
        worker_timeout_s: the seconds that a call of an env in a worker may take before the worker is replaced.
        max_worker_restarts: how often in a row a worker is replaced that does not complete a step; after that,
            `EnvRaisedError` is raised.
        env_state: whether each step has the `state()` of the envs, as `VecStep.env_state`, for critics that see
            everything.
        env_kwargs: passed to the factory, by themselves or as a mapping `env_kwargs={...}`. A factory with a parameter
            `env_index` also gets the env's index.

    Raises:
        ConfigError: one of the arguments is wrong; the message says which values are accepted.
    """
    n_envs = require("n_envs", n_envs, NumberOfEnvs)
    named = [name for name in VECTORIZERS.names() if name not in STEPPED_ELSEWHERE]
    require_known(vectorizer, named, f"unknown vectorizer {vectorizer!r}", "vectorizer")
    seed = require("seed", seed, Count | None)
    _require_maker(env)
    episode_horizon = require("episode_horizon", episode_horizon, PositiveInt | None)
    n_workers = require("n_workers", n_workers, NumberOfWorkers)
    worker_timeout_s = require("worker_timeout_s", worker_timeout_s, PositiveSeconds)
    max_worker_restarts = require("max_worker_restarts", max_worker_restarts, Count)
    factory = env_factory(env)
    env_kwargs = _without_nesting(factory, env_kwargs)
    request = VecEnvRequest(
        factory, n_envs, seed, env_kwargs, vectorizer, n_workers, worker_timeout_s, max_worker_restarts, env_state
    )
    apart = getattr(factory, "steps_apart", False)
    made = VECTORIZERS["steps_apart" if apart else vectorizer if n_workers == 0 else "n_workers"](request)
    if episode_horizon is not None:
        made.limit_episodes(episode_horizon)
    if env_state:
        made.show_env_state()
    return made
