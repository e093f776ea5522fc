"""Settings by the names of RLlib and in the format of rl-baselines3-zoo."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
