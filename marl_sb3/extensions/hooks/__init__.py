"""Hooks of callbacks within rollouts: the episode at hand, and trajectories that they may rewrite.

They stand at the door `WATCHERS`; a training without such hooks has none of this.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
