"""Episodes on disk: recorded as Minari datasets, read again, learned from, and used to estimate policies."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
