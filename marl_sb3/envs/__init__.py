"""The built-in envs, and the registry that finds all others."""

from __future__ import annotations

import pettingzoo

if "marl_sb3/arena-v0" not in pettingzoo.parallel_registry:
    pettingzoo.register("parallel", "marl_sb3/arena-v0", entry_point="marl_sb3.envs.arena:ArenaEnv")
