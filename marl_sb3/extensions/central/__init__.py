"""Critics that see the whole env while the actors see their own observations (MAPPO, Yu et al. 2022)."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
