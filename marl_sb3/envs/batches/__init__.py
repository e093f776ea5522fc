"""Envs that come as batches from other libraries: vector envs of Gymnasium, EnvPool, VMAS, and envs written in JAX.

Each library has a module with a `BatchedEnv` on it; `base` has what they share. An adapter of your own simulator is
written in the same way: see docs/how_to/batches.md.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
