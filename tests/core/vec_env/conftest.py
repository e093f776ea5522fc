"""All vectorizers promise the same: their tests run once with each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from marl_sb3.core.vec_env.interface import VecEnvRequest
from marl_sb3.doors import VECTORIZERS
from marl_sb3.extensions.remote.workers.vec_env import WorkersVecEnv


def _workers(request: VecEnvRequest) -> WorkersVecEnv:
    of_workers = request.vectorizer.removesuffix("workers").removesuffix("-") or "sync"
    limits = {"n_workers": min(2, request.n_envs), "worker_timeout_s": 60.0}
    return WorkersVecEnv(replace(request, vectorizer=of_workers, **limits))


@pytest.fixture(autouse=True, scope="package")
def _workers_as_vectorizers() -> Iterator[None]:
    """Two workers, under names of vectorizers."""
    names = ("workers", "batched-workers")
    for name in names:
        VECTORIZERS.add(name, _workers)
    yield
    for name in names:
        VECTORIZERS.remove(name)


@pytest.fixture(scope="module", params=["sync", "supersuit", "workers"])
def each_vectorizer(request: pytest.FixtureRequest) -> Iterator[str]:
    """Makes `make_vec_env` take this vectorizer where nothing else is said."""
    auto, taken = VECTORIZERS["auto"], VECTORIZERS[request.param]
    VECTORIZERS.add("auto", lambda asked: taken(replace(asked, vectorizer=request.param)))
    yield request.param
    VECTORIZERS.add("auto", auto)
