"""What can be set: kinds of values, ids, algorithms, networks, and the settings of a policy."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
