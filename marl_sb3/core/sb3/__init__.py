"""The only folder that uses SB3's private members: for a new version of SB3, check this folder."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
