"""Features extractors by the names in `core/config/networks.py`: each is imported when a policy first names it.

An extractor with a method `arguments_for` is asked what it takes from the processing of a policy.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
