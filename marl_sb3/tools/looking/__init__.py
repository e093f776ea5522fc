"""Looking at runs: comparisons, reports, hints on what went wrong, and episodes played on a screen."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
