"""Algorithms with a replay buffer for policies with memory (R2D2, Kapturowski et al. 2019)."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
