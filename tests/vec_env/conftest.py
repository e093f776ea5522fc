"""All vectorizers promise the same: their tests run once with each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from marl_sb3 import vec_env
from marl_sb3.vec_env.workers.vec_env import WorkersVecEnv


def _with_workers(factory: Any, n_envs: int, seed: int | None, env_kwargs: Any, *, batched: bool) -> WorkersVecEnv:
    return WorkersVecEnv(factory, n_envs, seed, env_kwargs, min(2, n_envs), batched=batched, timeout_s=60)


@pytest.fixture(autouse=True, scope="package")
def _workers_as_vectorizers() -> Iterator[None]:
    """Two workers, under names of vectorizers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vec_env.VECTORIZERS, "workers", partial(_with_workers, batched=False))
        patch.setitem(vec_env.VECTORIZERS, "batched-workers", partial(_with_workers, batched=True))
        yield


@pytest.fixture(scope="module", params=["sync", "supersuit", "workers"])
def each_vectorizer(request: pytest.FixtureRequest) -> Iterator[str]:
    """Makes `make_vec_env` take this vectorizer where nothing else is said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vec_env.VECTORIZERS, "auto", vec_env.VECTORIZERS[request.param])
        yield request.param
