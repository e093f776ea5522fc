"""Learning from a replay buffer: the buffers, and the learner that updates from them."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
