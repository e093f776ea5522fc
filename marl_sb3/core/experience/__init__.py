"""What all experience has in common: transitions from an action to the next turn or the end, and hooks on them."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
