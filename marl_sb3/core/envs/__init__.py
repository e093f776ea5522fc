"""How an env is found by its id, made, and brought into the form of a `ParallelEnv`."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
