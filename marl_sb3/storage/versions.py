"""The versions of the packages that decide what a training computes."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version

import marl_sb3


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return version by package; with other versions, a resumed run may not be exact."""
    others = ("stable-baselines3", "torch", "numpy", "gymnasium")
    # Not by its metadata: a checkout that is not installed has none.
    return {"marl_sb3": marl_sb3.__version__, **{name: version(name) for name in others}}
