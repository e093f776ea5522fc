"""Train policies: one SB3 algorithm per policy. `sb3/` holds everything that uses SB3's private members."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
