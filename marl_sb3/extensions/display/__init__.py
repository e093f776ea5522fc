"""Output for people: formatted numbers, tables, and views of a training run for terminals, notebooks and plain text."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
