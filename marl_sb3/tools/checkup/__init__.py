"""Examine an env: play it, and say in plain words what would go wrong in training."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
