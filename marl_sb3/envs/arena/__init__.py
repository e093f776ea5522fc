"""The arena: its rules as array functions, the env, its batched version, and rendering."""

from marl_sb3.envs.arena.env import ArenaEnv

__all__ = ["ArenaEnv"]
