"""Envs whose rules numba compiles: see `CompiledRules` for how one is written, and docs/how_to/compiled_envs.md."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
