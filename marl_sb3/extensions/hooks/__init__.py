"""Hooks of callbacks within rollouts: the episode at hand, and trajectories that they may rewrite.

They are the first users of the doors `WATCHERS` and `REWRITERS`; a training without such hooks has none of this.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
