"""Files: written as a whole or not at all, read without following links, and YAML as plain data."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
