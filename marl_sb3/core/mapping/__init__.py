"""Which policy each agent has, and which rows of the vec env are a policy's."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
