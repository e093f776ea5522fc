"""Waterworld: parameters, compiled rules, one env, many envs at once, and how they are drawn."""

from marl_sb3.envs.waterworld.env import WaterworldEnv

__all__ = ["WaterworldEnv"]
