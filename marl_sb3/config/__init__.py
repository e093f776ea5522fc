"""The configuration of a run: the schema of all settings, and reading them from files and options.

Names are imported when they are first used: a command line needs the algorithms alone.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
