"""The policies of a run, the policy and the array columns of each agent, and the classes of networks by name."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
