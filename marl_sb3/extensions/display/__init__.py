"""Output for people: numbers, tables, pictures, films, and views of a training for terminals and notebooks."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
