"""The joint training: the public class, the training loop, counters, results, the parts of a checkpoint."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
