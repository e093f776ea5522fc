"""The envs that come with the package, RLlib's, and those that clients step elsewhere."""

from __future__ import annotations

import lazy_loader
import pettingzoo

ENTRY_POINTS = {
    "marl_sb3/arena-v0": "marl_sb3.envs.arena:ArenaEnv",
    "marl_sb3/waterworld-v0": "marl_sb3.envs.waterworld:WaterworldEnv",
}

for _env_id, _entry_point in ENTRY_POINTS.items():
    if _env_id not in pettingzoo.parallel_registry:
        pettingzoo.register("parallel", _env_id, entry_point=_entry_point)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
