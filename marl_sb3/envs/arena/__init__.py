"""The arena: its rules as array functions, one env, many envs at once, and how it is drawn."""

from marl_sb3.envs.arena.env import ArenaEnv

__all__ = ["ArenaEnv"]
