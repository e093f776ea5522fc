"""Envs and shards in other processes: workers, shards, and runners on this machine or on Ray."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
