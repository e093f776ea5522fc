"""Evaluations: complete episodes, by the policies of one run or of several, against each other or code that is none."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
