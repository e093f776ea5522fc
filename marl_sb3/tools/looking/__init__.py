"""What runs say when they are looked at: their records, curves, comparisons, and hints on what went wrong."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
