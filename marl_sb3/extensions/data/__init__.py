"""Episodes on disk: recording them as Minari datasets, reading such datasets, and estimating policies on them."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
