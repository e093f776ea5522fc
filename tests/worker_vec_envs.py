"""Vec envs with workers, alone or beside one without, and their steps as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import numpy as np

from marl_sb3 import make_vec_env
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep


@contextmanager
def workers_of(env: Any, n_envs: int = 4, n_workers: int = 2, **options: Any) -> Iterator[MultiAgentVecEnv]:
    """Envs after their reset, which are closed in the end; without workers, they are in this process."""
    with closing(make_vec_env(env, n_envs=n_envs, n_workers=n_workers, **{"seed": 5, **options})) as vec:
        vec.reset()
        yield vec


@contextmanager
def both(env: Any, n_workers: int = 2, **options: Any) -> Iterator[tuple[MultiAgentVecEnv, MultiAgentVecEnv]]:
    """The same envs with workers and without."""
    with ExitStack() as stack:
        apart, here = (stack.enter_context(workers_of(env, n_workers=each, **options)) for each in (n_workers, 0))
        yield apart, here


def processes(vec: MultiAgentVecEnv) -> list[int]:
    """The process of each worker."""
    return [worker.process for worker in vec._supervisor.workers]  # type: ignore[attr-defined]


def restarts(vec: MultiAgentVecEnv) -> int:
    """How many workers have been replaced; all run."""
    assert vec.health is not None
    assert vec.health.num_healthy_workers == len(processes(vec))
    return vec.health.num_worker_restarts


def zeros(vec: MultiAgentVecEnv) -> list[np.ndarray]:
    """The first action of each agent."""
    return [np.zeros((vec.num_envs, len(vec.agents)), int)]


def zero_step(vec: MultiAgentVecEnv) -> VecStep:
    """Take a step with these."""
    return vec.step(zeros(vec))


def plain_step(vec: MultiAgentVecEnv) -> dict[str, Any]:
    """The latest step as plain data."""
    step = vec.latest
    arrays = [*step.observations, *(mask for mask in step.action_masks if mask is not None)]
    arrays += [step.rewards, step.terminated, step.truncated, step.acted, step.to_act, step.episode_done]
    return {
        "arrays": [array.tolist() for array in arrays],
        "finals": {place: np.asarray(seen).tolist() for place, seen in step.final_observations.items()},
        "infos": [repr(step.infos[index]) for index in range(vec.num_envs)],
        "resets": repr(sorted(step.reset_infos.items())),
    }


def played(vec: MultiAgentVecEnv, steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """The next steps, with random actions that are allowed."""
    rng = np.random.default_rng(seed)
    seen = []
    for _ in range(steps):
        masks = vec.latest.action_masks[0]
        allowed = np.ones((vec.num_envs, len(vec.agents), 3), bool) if masks is None else masks
        vec.step([np.where(allowed, rng.random(allowed.shape), -1).argmax(axis=2)])
        seen.append(plain_step(vec))
    return seen
