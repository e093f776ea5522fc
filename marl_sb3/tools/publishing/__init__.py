"""A run as others get it: one checkpoint with its settings, measured, described on a model card, and filmed."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
