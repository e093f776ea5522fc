"""Hyperparameter search: spaces, studies, trials in worker processes, confirmation with fresh seeds, reports."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
