"""The state of a training as plain data and arrays: parts that list their fields, checked before they are set."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
