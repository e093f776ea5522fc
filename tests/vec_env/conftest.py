"""Both vectorizers of separate envs promise the same: their tests run once with each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from marl_sb3 import vec_env


@pytest.fixture(scope="module", params=["sync", "supersuit"])
def each_vectorizer(request: pytest.FixtureRequest) -> Iterator[str]:
    """Makes `make_vec_env` take this vectorizer where nothing else is said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(vec_env.VECTORIZERS, "auto", vec_env.VECTORIZERS[request.param])
        yield request.param
