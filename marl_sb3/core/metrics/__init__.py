"""Metrics of finished episodes, and mean, SD and confidence interval of samples.

A metric has the same name everywhere: its path in the nested result, joined with `/`.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
