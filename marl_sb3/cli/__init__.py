"""The command lines of all commands, and code that they share; nothing heavy is imported."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
