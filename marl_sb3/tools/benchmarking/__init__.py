"""Benchmarks: algorithms x envs x seeds of a file, trained by any number of processes that share a folder."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
