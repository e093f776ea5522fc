"""A run: from settings to a run folder, its logs and trackers, resuming it, and runs of several seeds."""

from __future__ import annotations

import lazy_loader

from marl_sb3.doors import DIALECTS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

DIALECTS.add("run", "marl_sb3.runs.schema:RUN_SETTINGS")
